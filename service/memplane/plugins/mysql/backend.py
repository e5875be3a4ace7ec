"""The MySQL store backend: one pool, from which scoped stores are cut, and the sweep of expired memories."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from memplane.contracts import Capabilities, Scope
from memplane.errors import PluginError, TargetUnavailable
from memplane.plugins.mysql.calls import changing, reading
from memplane.plugins.mysql.changes import sweep
from memplane.plugins.mysql.errors import StoreAway
from memplane.plugins.mysql.keyword import STRATEGIES
from memplane.plugins.mysql.pool import Pool, Session
from memplane.plugins.mysql.schema import prepare
from memplane.plugins.mysql.settings import MysqlSettings
from memplane.plugins.mysql.store import MysqlStore
from memplane.plugins.postgres.documents import check_scope_part
from memplane.plugins.postgres.order import ORDER_FIELDS
from memplane.retrieval.filters import OPERATORS
from memplane.signal import Signal

_log: Final = logging.getLogger(__name__)

SWEEP: Final = 500
"""Expired memories that one sweep removes in one transaction."""

_DRAW: Final = "UPDATE memplane_sequence SET last = LAST_INSERT_ID(last + %s) WHERE name = 'memory'"


class MysqlBackend:
    """Implements `StoreBackend`, and `SearchBackend` by its stores' keyword search."""

    def __init__(self, settings: MysqlSettings) -> None:
        self._settings = settings
        self._pool = Pool(settings)
        self._sweeping: asyncio.Task[None] | None = None

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(atomicBatches=True, strategies=STRATEGIES, filters=OPERATORS, orderFields=ORDER_FIELDS)

    async def start(self) -> None:
        """Connect and bring the schema up to date. Raises `TargetUnavailable`, `SchemaError`, `SettingsError`."""
        try:
            await self._pool.start()
            await prepare(self._pool)
        except StoreAway:
            await self._pool.close()
            raise TargetUnavailable("mysql", "it does not answer, or refuses the credentials") from None
        except BaseException:
            await self._pool.close()
            raise
        if self._sweeping is None:
            self._sweeping = asyncio.create_task(self._sweep(), name="memplane-mysql-sweep")

    async def close(self) -> None:
        """Stop sweeping and close the pool. Idempotent."""
        task, self._sweeping = self._sweeping, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self._pool.close()

    async def healthy(self) -> bool:
        """Whether the server answers now."""

        async def ask(session: Session) -> None:
            await session.run("SELECT 1")

        try:
            await reading(self._pool, None, ask)
        except PluginError:
            return False
        return True

    def scoped(self, scope: Scope) -> MysqlStore:
        """The store of one tenant and user. Raises INVALID_INPUT for a scope that cannot be stored."""
        check_scope_part(scope.tenant, "tenant")
        check_scope_part(scope.user, "user")
        return MysqlStore(
            self._pool,
            scope,
            self._draw,
            require_expected_version=bool(self._settings.require_expected_version),
        )

    async def expire(self) -> int:
        """Remove up to `SWEEP` expired memories; how many. Safe to run in parallel."""
        return await changing(self._pool, None, lambda session: sweep(session, SWEEP))

    async def _draw(self, count: int, signal: Signal | None) -> int:
        """The first of `count` new ids. A transaction of its own: writers do not wait for each other's batches."""

        async def draw(session: Session) -> int:
            return await session.next_number(_DRAW, [count])

        # Repeating it costs ids, nothing else.
        return await reading(self._pool, signal, draw) - count + 1

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._settings.sweep_seconds)
            try:
                while await self.expire() == SWEEP:
                    pass
            except PluginError as error:
                _log.warning("expired memories were not removed: %s", error.code)
            except Exception as error:  # noqa: BLE001 - readers do not depend on it; it is tried again
                _log.warning("expired memories were not removed: %s", type(error).__name__)
