"""The backend: one connection for all scopes, one transaction at a time."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from memplane import PluginError, Scope
from memplane.contracts import Capabilities
from memplane_sqlite.store import SqliteStore

T = TypeVar("T")

SCHEMA = """
CREATE TABLE IF NOT EXISTS memory (
    id INTEGER PRIMARY KEY AUTOINCREMENT, tenant TEXT NOT NULL, user TEXT NOT NULL, key TEXT,
    content TEXT NOT NULL, metadata TEXT, version INTEGER NOT NULL DEFAULT 1, UNIQUE (tenant, user, key)
)
"""


class SqliteBackend:
    """A `StoreBackend`. SQLite's calls block, so they run in a thread, in turn. `path` is asked for at start."""

    def __init__(self, path: Callable[[], Path]) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._turn = asyncio.Lock()

    @property
    def capabilities(self) -> Capabilities:
        """Only what is true: the conformance suite checks it, and that everything else is refused."""
        return {"atomicBatches": True, "strategies": (), "filters": (), "orderFields": ("id",)}

    async def start(self) -> None:
        if self._connection is None:
            self._connection = await asyncio.to_thread(self._open)

    async def healthy(self) -> bool:
        """Optional: asked for `/readyz`."""
        return await self.transaction(lambda connection: connection.execute("SELECT 1").fetchone() is not None)

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            async with self._turn:
                await asyncio.to_thread(connection.close)

    def scoped(self, scope: Scope) -> SqliteStore:
        return SqliteStore(self, scope)

    async def transaction(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in a transaction: all of it, or nothing. A cancelled caller does not leave it half done."""
        return await asyncio.shield(asyncio.ensure_future(self._in_turn(work)))

    async def _in_turn(self, work: Callable[[sqlite3.Connection], T]) -> T:
        async with self._turn:
            if self._connection is None:
                raise PluginError("STORE_UNAVAILABLE", "The store is closed")
            return await asyncio.to_thread(_committed, self._connection, work)

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path(), check_same_thread=False)
        connection.row_factory = sqlite3.Row
        connection.execute(SCHEMA)
        return connection


def _committed(connection: sqlite3.Connection, work: Callable[[sqlite3.Connection], T]) -> T:
    with connection:  # commits, or rolls back when `work` raises
        return work(connection)
