"""One purge: everything that is over is removed, in small transactions (seed `002` section 10.3; design section 7).

Safe to run beside writers, workers, the reconciler and itself: rows are locked in order and skipped when somebody
holds them, and every condition is looked at again under the lock. A kill at any moment leaves whole batches.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final

from memplane.outbox.events import Target
from memplane.outbox.prune import prune_processed
from memplane.outbox.shadow import read_shadowed
from memplane.purge.judge import Verdict
from memplane.purge.leftovers import BEFORE_ALL, EMBEDDING_GRACE, Key, purge_chain, purge_edges, purge_embeddings
from memplane.purge.tombstones import ACTIVITY, FIRST, Terms, page, remove, settle, unsettled, verdicts
from memplane.reconcile.runs import forget_runs
from memplane.schema.database import Database
from memplane.schema.totals import add_totals
from memplane.settings import Settings
from memplane.signal import Signal

log = logging.getLogger(__name__)

RUNS: Final = 100
"""Reconciliation runs per transaction: each takes its findings with it."""


@dataclass(slots=True)
class Report:
    """What a purge removed, by kind, and the tombstones that it looked at, by verdict."""

    dry_run: bool
    removed: dict[str, int] = field(default_factory=dict)
    tombstones: dict[str, int] = field(default_factory=dict)
    cancelled: bool = False

    def add(self, kind: str, count: int) -> None:
        self.removed[kind] = self.removed.get(kind, 0) + count


ProgressCallback = Callable[[str, int], None]
"""(kind, removed so far)."""


async def terms_of(database: Database, settings: Settings, targets: Collection[Target]) -> Terms:
    """When tombstones of this backend may go.

    Whether a target is in Shadow, the settings of this process tell, and the events that ended so: workers may have
    settings of their own.
    """
    terms = Terms(frozenset(targets), timedelta(seconds=settings.purge.retention_seconds))
    shadow = settings.outbox.mode == "Shadow"
    for target in terms.projections:
        shadow = shadow or (await read_shadowed(database, target)).due
    return replace(terms, shadow=shadow)


async def purge(
    database: Database,
    settings: Settings,
    targets: Collection[Target],
    *,
    dry_run: bool = False,
    signal: Signal | None = None,
    progress: ProgressCallback | None = None,
    embedding_grace_seconds: float = EMBEDDING_GRACE,
) -> Report:
    """Remove what may go; with `dry_run` only count the tombstones by what they wait for.

    Stops between transactions when `signal` aborts. Raises `TargetUnavailable` when PostgreSQL is away.
    """
    terms = await terms_of(database, settings, targets)
    run = _Purge(database, settings, terms, dry_run=dry_run, signal=signal or Signal(), progress=progress)
    if not dry_run:
        await run.settle()
    await run.tombstones()
    if not dry_run:
        await run.leftovers(embedding_grace_seconds)
    run.report.cancelled = run.signal.aborted
    if run.report.removed:
        log.info("purged", extra={"removed": run.report.removed, "tombstones": run.report.tombstones})
    return run.report


class _Purge:
    def __init__(
        self,
        database: Database,
        settings: Settings,
        terms: Terms,
        *,
        dry_run: bool,
        signal: Signal,
        progress: ProgressCallback | None,
    ) -> None:
        self.database = database
        self.settings = settings.purge
        self.outbox = settings.outbox
        self.terms = terms
        self.signal = signal
        self.progress = progress
        self.report = Report(dry_run)

    async def settle(self) -> None:
        """Note of new tombstones when their events were finished, before those are pruned."""
        last = 0
        while not self.signal.aborted:
            found = await unsettled(self.database, last, self.settings.batch_size)
            if not found:
                return
            await settle(self.database, found, self.terms)
            last = found[-1].memory_id

    async def tombstones(self) -> None:
        """Judge the tombstones in the order in which they were deleted, and remove those that may go."""
        place = FIRST
        while not self.signal.aborted:
            found = await page(self.database, place, self.settings.batch_size)
            if not found:
                return
            place = (found[-1].deleted_at, found[-1].memory_id)
            outcomes = await verdicts(self.database, found, self.terms)
            for verdict in outcomes:
                self.report.tombstones[verdict] = self.report.tombstones.get(verdict, 0) + 1
            ready = [one.memory_id for one, verdict in zip(found, outcomes, strict=True) if verdict is Verdict.READY]
            if ready and not self.report.dry_run:
                self._add("tombstones", len(await remove(self.database, ready, self.terms)))
            if not self.report.dry_run and outcomes[-1] is Verdict.RETAINED:
                # Those that follow were deleted even later.
                return

    async def leftovers(self, embedding_grace_seconds: float) -> None:
        """Everything that is not a tombstone."""
        batch = self.settings.batch_size
        await self._repeat("edges", batch, lambda: purge_edges(self.database, self.terms, batch))
        await self._embeddings(embedding_grace_seconds)
        await self._repeat("events", batch, self._events)
        keep = self.settings.runs_retention_seconds
        await self._repeat("runs", RUNS, lambda: self._runs(keep))
        audit = self.settings.audit_retention_seconds
        await self._repeat("supersedes", batch, lambda: purge_chain(self.database, audit, batch))

    async def _embeddings(self, grace_seconds: float) -> None:
        place: Key | None = BEFORE_ALL
        while place is not None and not self.signal.aborted:
            count, place = await purge_embeddings(
                self.database, place, self.settings.batch_size, grace_seconds=grace_seconds
            )
            self._add("embeddings", count)

    async def _events(self) -> int:
        return await prune_processed(
            self.database,
            retention_seconds=self.outbox.retention_seconds,
            batch=self.settings.batch_size,
            max_batches=1,
        )

    async def _runs(self, keep_seconds: float) -> int:
        count = await forget_runs(self.database, older_than_seconds=keep_seconds, batch=RUNS)
        async with self.database.transaction() as connection:
            await add_totals(connection, self.database, ACTIVITY, {"runs": count})
        return count

    async def _repeat(self, kind: str, batch: int, work: Callable[[], Awaitable[int]]) -> None:
        while not self.signal.aborted:
            count = await work()
            self._add(kind, count)
            if count < batch:
                return

    def _add(self, kind: str, count: int) -> None:
        if count:
            self.report.add(kind, count)
        if self.progress is not None:
            self.progress(kind, self.report.removed.get(kind, 0))
