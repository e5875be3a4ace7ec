"""What one instance of the service does at a time, for all: tombstone expired memories, prune processed events, settle
what an old application writes while its table is being adopted.

Whose turn it is, an advisory lock decides, held by a transaction for as long as the pass takes: it works behind a
transaction-pooling proxy, and it goes with the process that held it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import asyncpg

from memplane.adoption.settle import active, settle
from memplane.api.supervise import sleep
from memplane.errors import TargetUnavailable
from memplane.outbox.events import Target
from memplane.outbox.prune import prune_processed
from memplane.plugins.postgres.delete import expire
from memplane.reconcile.beginning import end_abandoned
from memplane.schema.committed import OnCommit
from memplane.schema.database import Database
from memplane.settings import Settings
from memplane.signal import Signal

log = logging.getLogger(__name__)

BATCHES_PER_PASS = 100
"""After so many batches a pass ends, so that no transaction stays open for long."""

Pass = Callable[[], Awaitable[int]]
"""One pass; returns how many rows it changed."""

StoppablePass = Callable[[Signal], Awaitable[int]]
"""A pass that may take long, and ends in good order when the signal aborts."""


class Upkeep:
    """The passes, each at its own interval, until the signal aborts."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        *,
        targets: frozenset[Target],
        on_commit: OnCommit | None = None,
        more: Mapping[str, tuple[float, StoppablePass]] | None = None,
    ) -> None:
        """`more`: further passes by name, with the seconds between two of them."""
        self._database = database
        self._more = dict(more or {})
        self._settings = settings
        self._targets = targets
        self._on_commit = on_commit

    async def run(self, signal: Signal) -> None:
        """Works until `signal` aborts. Raises `TargetUnavailable` when the database is away; it is started again."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._repeat("expiry", self._settings.upkeep.expiry_seconds, self._expire, signal))
            group.create_task(self._repeat("prune", self._settings.upkeep.prune_seconds, self._prune, signal))
            for name, (seconds, work) in self._more.items():
                group.create_task(self._repeat(name, seconds, partial(work, signal), signal))
            # No adoption begins under a service: it does not start before the table is adopted.
            if await active(self._database):
                seconds = self._settings.adoption.settle_seconds
                group.create_task(self._repeat("adoption", seconds, self._settle, signal))

    async def _expire(self) -> int:
        limit, total = self._settings.upkeep.batch_size, 0
        for _ in range(BATCHES_PER_PASS):
            buried = await expire(self._database, targets=self._targets, limit=limit, on_commit=self._on_commit)
            total += buried
            if buried < limit:
                break
        return total

    async def _prune(self) -> int:
        await end_abandoned(self._database)
        return await prune_processed(
            self._database,
            retention_seconds=self._settings.outbox.retention_seconds,
            batch=self._settings.upkeep.batch_size,
            max_batches=BATCHES_PER_PASS,
        )

    async def _settle(self) -> int:
        """What an old application wrote is hashed, and its events are enqueued."""
        total = 0
        for _ in range(BATCHES_PER_PASS):
            # Once the adoption is finished, nothing is marked any more, and the index of the marks is gone.
            if not await active(self._database):
                break
            settled = await settle(self._database, targets=self._targets)
            total += settled
            if settled == 0:
                break
        return total

    async def _repeat(self, name: str, seconds: float, work: Pass, signal: Signal) -> None:
        while not signal.aborted:
            try:
                changed = await alone(self._database, name, work)
                if changed:
                    log.info("%s pass", name, extra={"rows": changed})
            except (TargetUnavailable, asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
                log.warning("%s pass failed, it is repeated", name, extra={"error": type(error).__name__})
            await sleep(seconds * random.uniform(0.8, 1.2), signal)  # noqa: S311 - jitter, no secret


async def alone(database: Database, name: str, work: Pass) -> int:
    """Do `work` unless another process of this backend does the same right now; returns the rows it changed."""
    async with database.transaction() as connection:
        mine = await connection.fetchval(
            "SELECT pg_try_advisory_xact_lock(hashtextextended($1, 0))", f"memplane.upkeep:{name}:{database.schema}"
        )
        return await work() if mine else 0
