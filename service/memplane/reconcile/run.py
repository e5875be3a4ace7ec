"""One reconciliation run: scan in id order, confirm what differs, report it, and in repair mode enqueue the repairs.

Memory is bounded: two pages at a time, whatever the table's size. Every step (candidates confirmed, repairs enqueued,
position recorded) is one transaction, so a run that was killed is taken up where it stopped.

Orphans are the one kind whose repair destroys data, and the one that a wrong connection produces en masse. So they are
put aside in the run's record, the run stops as soon as they exceed a fraction of what the target holds, and they are
repaired only after a whole run without that.

Source: seed `002` section 10; design section 7.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress

from memplane.errors import MemplaneError
from memplane.outbox.enqueue import enqueue_repairs
from memplane.outbox.events import ProjectionTarget
from memplane.outbox.locks import lock_memories
from memplane.outbox.patience import DATABASE_ERRORS
from memplane.reconcile.beginning import Alive, Beginning, begin, read_lineage
from memplane.reconcile.confirm import Confirmed, Mismatch, confirm, unique_repairs
from memplane.reconcile.diff import Difference, Drift
from memplane.reconcile.inventory import Inventory, inventory_of
from memplane.reconcile.pace import Pace
from memplane.reconcile.record import HEARTBEAT_SECONDS, UNSETTLED, Finding, RunRecord
from memplane.reconcile.report import Kind, Mode, Progress, ProgressCallback, Report, Sample
from memplane.reconcile.scan import ChangedScan, FullScan, Page, Scan, batches, pages, within
from memplane.reconcile.truth import LAST_ID, estimate
from memplane.reconcile.watermark import changed_since, read_base
from memplane.schema.database import Connection, Database
from memplane.settings import ReconcileSettings
from memplane.signal import Signal

log = logging.getLogger(__name__)

CONFIRM = 500
"""Candidates looked at again, and repaired, in one go."""

SAMPLES = 100
"""Mismatches that a run keeps as examples."""

ORPHAN_FLOOR = 100
"""So many orphans are never suspicious."""


class TooManyOrphans(MemplaneError):  # noqa: N818 - reads as what was found
    """The target holds more than the truth explains: is it the right database?"""

    def __init__(self, found: int, held: int) -> None:
        super().__init__(
            f"More than {found} of about {held} objects have no memory in the truth. None of them was touched. "
            "If the truth is right, run again and allow orphans"
        )


class AlreadyRunning(MemplaneError):  # noqa: N818 - reads as what is in the way
    """Another process is making the same comparison right now."""

    def __init__(self, run_id: int) -> None:
        super().__init__(f"Run {run_id} is making this comparison right now: wait until it ends, or end it")


async def reconcile(
    database: Database,
    target: ProjectionTarget,
    *,
    mode: Mode,
    kind: Kind = "full",
    signal: Signal | None = None,
    progress: ProgressCallback | None = None,
    orphan_fraction: float | None = None,
    resume: bool = True,
    settings: ReconcileSettings | None = None,
    inventory: Inventory | None = None,
) -> Report:
    """Compare a target with the truth and return what was found; repairs are events for the target's workers.

    An incremental run becomes a full one when there is nothing to build upon; `Report.reason` says why. `resume`: take
    up a run of the same kind and mode that broke off, if it is young enough (`settings.resume_seconds`).
    `orphan_fraction` (0 to 1; 1 allows any number) is the share of orphans at which the run stops, by default that of
    the settings. `inventory` stands in for the target's own, to compare another generation.

    A run that was aborted by `signal` ends as `cancelled`, one that stopped on its own as `failed`; both are recorded.
    Raises `AlreadyRunning`, `RunLost`, `TargetUnavailable`, `IdentityError`, whatever else ends it, after recording
    the run as failed.
    """
    chosen, signal = settings or ReconcileSettings(), signal or Signal()
    held = inventory or await inventory_of(target, vectors=chosen.vectors)
    lineage = await read_lineage(database)
    beginning = await _beginning(database, held, kind, mode, lineage)
    record = await _begin(database, beginning, chosen.resume_seconds if resume else 0.0, signal)
    fraction = chosen.orphan_fraction if orphan_fraction is None else orphan_fraction
    run = _Run(record, held, chosen, signal=signal, progress=progress, orphan_fraction=fraction)
    report = record.report
    try:
        async with _heartbeat(record):
            await run.work()
    except TooManyOrphans as stop:
        report.state, report.error = "failed", str(stop)
    except (Exception, asyncio.CancelledError) as error:
        report.state, report.error = "failed", type(error).__name__
        with suppress(*DATABASE_ERRORS):
            await record.end()
        raise
    await record.end()
    return report


async def _beginning(database: Database, inventory: Inventory, kind: Kind, mode: Mode, lineage: str) -> Beginning:
    target, generation = inventory.target, inventory.generation_id
    if kind == "full":
        return Beginning(target, kind, mode, generation, lineage)
    base = await read_base(database, target, lineage=lineage, generation_id=generation)
    return Beginning(
        target, "full" if base.since is None else "incremental", mode, generation, lineage, base.since, base.reason
    )


async def _begin(database: Database, beginning: Beginning, resume_seconds: float, signal: Signal) -> RunRecord:
    """Begin; a run that may be dead is given the time to show that it lives."""
    first: Alive | None = None
    while True:
        try:
            return await begin(database, beginning, resume_seconds=resume_seconds)
        except Alive as alive:
            if first is not None and (alive.run_id, alive.heartbeat_at) != (first.run_id, first.heartbeat_at):
                raise AlreadyRunning(alive.run_id) from None
            if first is None:
                log.info("waiting to see whether an unfinished run still lives", extra={"run_id": alive.run_id})
            first = first or alive
        with suppress(TimeoutError):
            async with asyncio.timeout(HEARTBEAT_SECONDS):
                await signal.wait()
        if signal.aborted:
            raise AlreadyRunning(first.run_id)


@asynccontextmanager
async def _heartbeat(record: RunRecord) -> AsyncIterator[None]:
    """Show that the run lives while it works."""

    async def beat() -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            try:
                if not await record.beat():
                    return  # the next step says that the run is lost
            except DATABASE_ERRORS as error:
                # The next statement of the run itself meets the same, and ends it.
                log.warning("a heartbeat failed", extra={"run_id": record.report.run_id, "error": type(error).__name__})

    beating = asyncio.create_task(beat())
    try:
        yield
    finally:
        beating.cancel()
        with suppress(asyncio.CancelledError):
            await beating


class _Run:
    def __init__(
        self,
        record: RunRecord,
        inventory: Inventory,
        settings: ReconcileSettings,
        *,
        signal: Signal,
        progress: ProgressCallback | None,
        orphan_fraction: float,
    ) -> None:
        self.database = record.database
        self.record = record
        self.report = record.report
        self.inventory = inventory
        self.settings = settings
        self.signal = signal
        self.progress = progress
        self.orphan_fraction = orphan_fraction
        self._held = 0
        self._total = 0

    async def work(self) -> None:
        await self.inventory.open()
        self._held = await self.inventory.count()
        if self.record.position < LAST_ID:
            await self._scan()
        if not self.signal.aborted:
            await self._repair_orphans()
        self.report.state = "cancelled" if self.signal.aborted else "completed"

    async def _scan(self) -> None:
        scan = await self._source()
        self._total = await scan.total()
        pace = Pace(self.settings.rows_per_second, self.signal)
        async with aclosing(pages(scan, self.inventory, self.record.position)) as found:
            async for page in found:
                await self._compare(page)
                await pace.keep(len(page.ids))
                if self.signal.aborted:
                    return

    async def _source(self) -> Scan:
        since, target = self.record.since, self.report.target
        if self.report.kind == "full" or since is None:
            return FullScan(self.database, self.inventory, await estimate(self.database))
        changed = await changed_since(self.database, target, since, limit=self.settings.max_changes)
        if changed is not None:
            return ChangedScan(self.database, self.inventory, changed)
        await self.record.widen(f"more than {self.settings.max_changes} memories have changed")
        return FullScan(self.database, self.inventory, await estimate(self.database))

    async def _compare(self, page: Page) -> None:
        """Confirm a page's candidates batch by batch; each batch is recorded with the position up to which it is."""
        done = 0
        for batch in batches(page.candidates, CONFIRM):
            confirmed = await confirm(self.database, self.inventory, batch)
            last = batch[-1].memory_id
            through = bisect_right(page.ids, last)
            await self._step(confirmed, last, through - done, within(page.unchecked, page.ids, done, through))
            done = through
        await self._step(Confirmed(), page.high, len(page.ids) - done, within(page.unchecked, page.ids, done, None))
        if self.progress is not None:
            mismatches = sum(self.report.mismatches.values())
            self.progress(Progress(self.record.position, self.report.scanned, self._total, mismatches))

    async def _step(self, confirmed: Confirmed, position: int, scanned: int, unchecked: int) -> None:
        """Count, repair and record, all or nothing."""
        report, mismatches = self.report, confirmed.mismatches
        report.scanned += scanned
        report.unchecked += unchecked
        report.count(
            [Sample(one.difference.memory_id, one.difference.drift, one.difference.detail) for one in mismatches],
            SAMPLES,
        )
        if confirmed.oldest_unsettled_xid is not None:
            self.record.watermark = min(self.record.watermark, confirmed.oldest_unsettled_xid)
        self._refuse_floods()
        findings = [_finding(one) for one in mismatches]
        findings += [Finding(memory_id, UNSETTLED) for memory_id in confirmed.unsettled]
        async with self.database.transaction() as connection:
            await self._repair(connection, [one for one in mismatches if one.difference.drift is not Drift.ORPHAN])
            await self.record.step(connection, position, findings)

    def _refuse_floods(self) -> None:
        allowed = max(ORPHAN_FLOOR, self.orphan_fraction * self._held)
        if self.orphan_fraction < 1 and self.report.mismatches.get(Drift.ORPHAN, 0) > allowed:
            raise TooManyOrphans(int(allowed), self._held)

    async def _repair_orphans(self) -> None:
        """Orphans were put aside a while ago, so each is looked at again."""
        if self.report.mode == "audit":
            return
        while not self.signal.aborted and (ids := await self.record.waiting_orphans(CONFIRM)):
            again = await confirm(self.database, self.inventory, [Difference(one, Drift.ORPHAN) for one in ids])
            orphans = [one for one in again.mismatches if one.difference.drift is Drift.ORPHAN]
            async with self.database.transaction() as connection:
                await self._repair(connection, orphans)
                await self.record.settle_orphans(connection, ids)
                await self.record.step(connection, LAST_ID)

    async def _repair(self, connection: Connection, mismatches: Sequence[Mismatch]) -> None:
        """Enqueue repairs type by type, so that what was repaired can be counted by type."""
        if self.report.mode == "audit":
            return
        repairs = [one for one in mismatches if one.repair is not None]
        # All locks at once in their order; the calls below find them held.
        await lock_memories(connection, self.database, {one.difference.memory_id for one in repairs})
        for drift in sorted({one.difference.drift for one in repairs}):
            chosen = unique_repairs([one for one in repairs if one.difference.drift is drift])
            self.report.add_repaired(drift, await enqueue_repairs(connection, self.database, chosen))


def _finding(mismatch: Mismatch) -> Finding:
    difference = mismatch.difference
    return Finding(difference.memory_id, difference.drift, difference.detail, living=mismatch.living)
