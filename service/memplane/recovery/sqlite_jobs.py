"""Task documents in `tasks.sqlite`: write-ahead log, full durability, one writer.

One thread owns the connection, so the event loop never waits for the disk; a second process waits for the file's lock.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from memplane.recovery.documents import Job, checked_job
from memplane.recovery.errors import JobBusy, RecoveryError
from memplane.recovery.jobs import Change, JobEvent

T = TypeVar("T")
BUSY_MILLISECONDS = 10_000

_SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (id TEXT PRIMARY KEY, document TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS events (
    number INTEGER PRIMARY KEY AUTOINCREMENT, task_id TEXT NOT NULL, kind TEXT NOT NULL, data TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS events_task ON events (task_id, number);
CREATE TABLE IF NOT EXISTS leases (task_id TEXT PRIMARY KEY, owner TEXT NOT NULL, until REAL NOT NULL);
"""


class SqliteJobs:
    """A `JobStore` in one file."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._path, self._clock = path, clock
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="memplane-recovery")
        self._connection: sqlite3.Connection | None = None
        self._closed = False

    async def open(self) -> None:
        """Open or create the file; its folder must exist. Idempotent."""
        await self._call(self._open)

    async def close(self) -> None:
        """Close the file; it is not opened again. Idempotent."""
        if self._closed:
            return
        self._closed = True
        await self._call(self._close)
        self._thread.shutdown(wait=True)

    async def _call(self, work: Callable[[], T]) -> T:
        """Run in the owning thread; a cancelled caller does not tear a transaction apart."""
        future = asyncio.get_running_loop().run_in_executor(self._thread, work)
        return await asyncio.shield(future)

    def _open(self) -> None:
        if self._connection is not None:
            return
        if not self._path.parent.is_dir():
            raise RecoveryError("The task folder does not exist")
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        connection.execute(f"PRAGMA busy_timeout = {BUSY_MILLISECONDS}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.executescript(_SCHEMA)
        self._connection = connection

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    async def _transaction(self, work: Callable[[sqlite3.Connection], T]) -> T:
        def run() -> T:
            self._open()
            connection = self._connection
            assert connection is not None
            connection.execute("BEGIN IMMEDIATE")
            try:
                result = work(connection)
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")
            return result

        return await self._call(run)

    async def insert(self, job: Job) -> None:
        def work(connection: sqlite3.Connection) -> None:
            try:
                connection.execute("INSERT INTO jobs VALUES (?, ?)", (job["id"], _text(job)))
            except sqlite3.IntegrityError:
                raise RecoveryError("A task of this id exists") from None
            _add_event(connection, job["id"], "created", job)

        await self._transaction(work)

    async def load(self, job_id: str) -> Job:
        return await self._transaction(lambda connection: _load(connection, job_id))

    async def change(self, job_id: str, kind: str, change: Change, *, owner: str | None = None) -> Job:
        def work(connection: sqlite3.Connection) -> Job:
            _check_lease(connection, job_id, owner)
            present = _load(connection, job_id)
            following = {**change(present), "revision": present["revision"] + 1}
            connection.execute("UPDATE jobs SET document = ? WHERE id = ?", (_text(following), job_id))
            _add_event(connection, job_id, kind, following)
            return following

        return await self._transaction(work)

    async def record(self, job_id: str, kind: str, data: Any, *, owner: str | None = None) -> None:
        def work(connection: sqlite3.Connection) -> None:
            _check_lease(connection, job_id, owner)
            _load(connection, job_id)
            _add_event(connection, job_id, kind, data)

        await self._transaction(work)

    async def events(self, job_id: str) -> Sequence[JobEvent]:
        def work(connection: sqlite3.Connection) -> list[JobEvent]:
            _load(connection, job_id)
            rows = connection.execute("SELECT kind, data FROM events WHERE task_id = ? ORDER BY number", (job_id,))
            return [JobEvent(kind, json.loads(data)) for kind, data in rows]

        return await self._transaction(work)

    async def jobs(self, *, stages: Sequence[str] = (), limit: int = 1000, after: str = "") -> Sequence[Job]:
        def work(connection: sqlite3.Connection) -> list[Job]:
            marks = ",".join("?" * len(stages))
            where = f"AND json_extract(document, '$.stage') IN ({marks})" if stages else ""
            sql = f"SELECT id, document FROM jobs WHERE id > ? {where} ORDER BY id LIMIT ?"
            rows = connection.execute(sql, (after, *stages, limit))
            return [checked_job(json.loads(text), job_id) for job_id, text in rows]

        return await self._transaction(work)

    async def acquire(self, job_id: str, owner: str, seconds: float) -> bool:
        now = self._clock()

        def work(connection: sqlite3.Connection) -> bool:
            _load(connection, job_id)
            changed = connection.execute(
                "INSERT INTO leases VALUES (?1, ?2, ?3) ON CONFLICT (task_id) DO UPDATE SET owner = ?2, until = ?3"
                " WHERE leases.owner = ?2 OR leases.until <= ?4",
                (job_id, owner, now + seconds, now),
            )
            return changed.rowcount == 1

        return await self._transaction(work)

    async def release(self, job_id: str, owner: str) -> None:
        def work(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM leases WHERE task_id = ? AND owner = ?", (job_id, owner))

        await self._transaction(work)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _load(connection: sqlite3.Connection, job_id: str) -> Job:
    row = connection.execute("SELECT document FROM jobs WHERE id = ?", (job_id,)).fetchone()
    if row is None:
        raise RecoveryError("Unknown task")
    return checked_job(json.loads(row[0]), job_id)


def _check_lease(connection: sqlite3.Connection, job_id: str, owner: str | None) -> None:
    """The transaction is the file's only writer: what is true here stays true until it has committed."""
    sql = "SELECT 1 FROM leases WHERE task_id = ? AND owner = ?"
    if owner is not None and connection.execute(sql, (job_id, owner)).fetchone() is None:
        raise JobBusy("The task's lease was lost")


def _add_event(connection: sqlite3.Connection, job_id: str, kind: str, data: Any) -> None:
    connection.execute("INSERT INTO events (task_id, kind, data) VALUES (?, ?, ?)", (job_id, kind, _text(data)))
