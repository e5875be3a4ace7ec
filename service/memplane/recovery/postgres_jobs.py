"""Task documents in PostgreSQL: shared by workers, and they outlive the node. Same promises as `sqlite_jobs`.

A change holds the task's row lock from reading to writing, and with an owner its lease's row before that, so that
nobody else can take the lease until the change has committed. Leases are counted on the database's clock.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from memplane.contracts import Scope
from memplane.errors import TargetUnavailable
from memplane.recovery.documents import Job, checked_job
from memplane.recovery.errors import JobBusy, RecoveryError
from memplane.recovery.jobs import Change, JobEvent
from memplane.schema.database import CONNECT_ERRORS, Connection, Database

_INSERT = """
INSERT INTO {schema}.recovery_job (job_id, tenant, user_id, revision, stage, document) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (job_id) DO NOTHING RETURNING job_id
"""
_LOAD = """
SELECT document FROM {schema}.recovery_job
WHERE job_id = $1 AND ($2::text IS NULL OR tenant = $2) AND ($3::text[] IS NULL OR user_id = ANY($3))
"""
_UPDATE = """
UPDATE {schema}.recovery_job SET document = $2, revision = $3, stage = $4,
       changed_at = CASE WHEN stage = $4 THEN changed_at ELSE now() END
WHERE job_id = $1
"""
_EVENT = "INSERT INTO {schema}.recovery_event (job_id, kind, data) VALUES ($1, $2, $3)"
_EVENTS = "SELECT kind, data FROM {schema}.recovery_event WHERE job_id = $1 ORDER BY event_id"
_LIST = """
SELECT job_id, document FROM {schema}.recovery_job
WHERE ($1::text[] = '{}' OR stage = ANY($1)) AND ($2::text IS NULL OR tenant = $2)
  AND ($3::text[] IS NULL OR user_id = ANY($3)) AND job_id > $5
ORDER BY job_id LIMIT $4
"""
_ACQUIRE = """
INSERT INTO {schema}.recovery_lease AS lease (job_id, owner, until)
VALUES ($1, $2, clock_timestamp() + $3 * interval '1 second')
ON CONFLICT (job_id) DO UPDATE SET owner = excluded.owner, until = excluded.until
    WHERE lease.owner = excluded.owner OR lease.until <= clock_timestamp()
RETURNING owner
"""
_IDLE = "SET LOCAL idle_in_transaction_session_timeout = '10s'"
_FENCE = "SELECT true FROM {schema}.recovery_lease WHERE job_id = $1 AND owner = $2 FOR SHARE"
_RELEASE = "DELETE FROM {schema}.recovery_lease WHERE job_id = $1 AND owner = $2"


class PostgresJobs:
    """A `JobStore` on the migrated database.

    tenant, users: whose tasks are seen; None: everybody's (a worker). New tasks belong to the tenant and the one user,
    or to `default`. Ids are unique over all tenants. Every method raises `TargetUnavailable` when the server is away.
    """

    def __init__(self, database: Database, *, tenant: str | None = None, users: Collection[str] | None = None) -> None:
        self._database, self._tenant = database, tenant
        self._users = None if users is None else sorted(users)

    @classmethod
    def of(cls, database: Database, scope: Scope) -> PostgresJobs:
        """The tasks of exactly one scope."""
        return cls(database, tenant=scope.tenant, users=(scope.user,))

    async def open(self) -> None:
        """Open the pool. Idempotent."""
        await self._database.open()

    async def close(self) -> None:
        """The pool belongs to whoever made it, and stays open."""

    @asynccontextmanager
    async def _transaction(self, *, locks: bool = False) -> AsyncIterator[Connection]:
        """`locks`: the server ends it when the process is stopped in it, so that others do not wait for its locks."""
        try:
            async with self._database.transaction() as connection:
                if locks:
                    await connection.execute(_IDLE)
                yield connection
        except (asyncpg.IdleInTransactionSessionTimeoutError, *CONNECT_ERRORS):
            raise TargetUnavailable("postgresql", "the connection was lost") from None

    async def insert(self, job: Job) -> None:
        text = _text(job)
        if self._users is not None and len(self._users) != 1:
            raise RecoveryError("A new task belongs to exactly one user")
        owner = (self._tenant or "default", self._users[0] if self._users else "default")
        async with self._transaction() as connection:
            row = (job["id"], *owner, job["revision"], job["stage"], text)
            if await connection.fetchval(self._sql(_INSERT), *row) is None:
                raise RecoveryError("A task of this id exists")
            await connection.execute(self._sql(_EVENT), job["id"], "created", text)

    async def load(self, job_id: str) -> Job:
        async with self._transaction() as connection:
            return await self._load(connection, job_id)

    async def change(self, job_id: str, kind: str, change: Change, *, owner: str | None = None) -> Job:
        async with self._transaction(locks=True) as connection:
            await self._check_lease(connection, job_id, owner)
            present = await self._load(connection, job_id, lock=True)
            following = {**change(present), "revision": present["revision"] + 1}
            text = _text(following)
            await connection.execute(self._sql(_UPDATE), job_id, text, following["revision"], following["stage"])
            await connection.execute(self._sql(_EVENT), job_id, kind, text)
        return following

    async def record(self, job_id: str, kind: str, data: Any, *, owner: str | None = None) -> None:
        async with self._transaction(locks=owner is not None) as connection:
            await self._check_lease(connection, job_id, owner)
            await self._load(connection, job_id)
            await connection.execute(self._sql(_EVENT), job_id, kind, _text(data))

    async def events(self, job_id: str) -> Sequence[JobEvent]:
        async with self._transaction() as connection:
            await self._load(connection, job_id)
            rows = await connection.fetch(self._sql(_EVENTS), job_id)
        return [JobEvent(row["kind"], json.loads(row["data"])) for row in rows]

    async def jobs(self, *, stages: Sequence[str] = (), limit: int = 1000, after: str = "") -> Sequence[Job]:
        async with self._transaction() as connection:
            rows = await connection.fetch(self._sql(_LIST), list(stages), self._tenant, self._users, limit, after)
        return [checked_job(json.loads(row["document"]), row["job_id"]) for row in rows]

    async def acquire(self, job_id: str, owner: str, seconds: float) -> bool:
        try:
            # No transaction around the one statement: a process that is stopped within would keep the lease's row
            # locked, and with it everybody who waits for the lease to end.
            async with self._database.acquire() as connection:
                return await connection.fetchval(self._sql(_ACQUIRE), job_id, owner, seconds) is not None
        except CONNECT_ERRORS:
            raise TargetUnavailable("postgresql", "the connection was lost") from None
        except asyncpg.ForeignKeyViolationError:
            raise RecoveryError("Unknown task") from None

    async def release(self, job_id: str, owner: str) -> None:
        async with self._transaction() as connection:
            await connection.execute(self._sql(_RELEASE), job_id, owner)

    def _sql(self, text: str) -> str:
        return self._database.sql(text)

    async def _check_lease(self, connection: Connection, job_id: str, owner: str | None) -> None:
        if owner is not None and await connection.fetchval(self._sql(_FENCE), job_id, owner) is None:
            raise JobBusy("The task's lease was lost")

    async def _load(self, connection: Connection, job_id: str, *, lock: bool = False) -> Job:
        sql = self._sql(_LOAD) + (" FOR UPDATE" if lock else "")
        text = await connection.fetchval(sql, job_id, self._tenant, self._users)
        if text is None:
            raise RecoveryError("Unknown task")
        return checked_job(json.loads(text), job_id)


def _text(value: Any) -> str:
    # Escaped: U+0000 and lone surrogates, which models do answer, cannot stand in TEXT.
    return json.dumps(value, separators=(",", ":"))
