"""The `ltm_cache` target: its events become notifications to every process that holds a cache (seed `002` 11.2)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import asyncpg

from memplane.cache.channel import cache_channel, payloads
from memplane.errors import TargetUnavailable
from memplane.outbox.events import Needs, Outcome, Target, Task, Verdict
from memplane.schema.database import CONNECT_ERRORS, Database


class CacheTarget:
    """A `ProjectionTarget` without a state of its own: broadcasting twice does no harm."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @property
    def name(self) -> Target:
        return Target.LTM_CACHE

    @property
    def needs(self) -> Needs:
        return Needs(fields=False)

    async def start(self) -> None:
        """Nothing to create."""

    async def close(self) -> None:
        """The pool belongs to its creator."""

    async def healthy(self) -> bool:
        try:
            async with self._database.acquire() as connection:
                await connection.fetchval("SELECT 1")
        except (TargetUnavailable, asyncpg.PostgresError, *CONNECT_ERRORS):
            return False
        return True

    async def project(self, tasks: Sequence[Task], *, timeout: float) -> Sequence[Outcome]:
        """Tell all processes, in one statement. Raises `TargetUnavailable`."""
        # A purged row has no version any more; then the event's own says what is stale.
        stale = [(task.truth.memory_id, max(task.truth.version, task.event.version)) for task in tasks]
        try:
            async with asyncio.timeout(timeout), self._database.acquire() as connection:
                await connection.execute(
                    "SELECT pg_notify($1, payload) FROM unnest($2::text[]) AS payload",
                    cache_channel(self._database),
                    payloads(stale),
                )
        except CONNECT_ERRORS:
            raise TargetUnavailable("ltm_cache", "the database does not answer") from None
        return [Outcome(Verdict.APPLIED) for _ in tasks]

    async def settled(self, tasks: Sequence[Task], *, timeout: float) -> Sequence[bool]:
        """Nobody can know whether a notification was sent: it is sent again."""
        return [False] * len(tasks)
