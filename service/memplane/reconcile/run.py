"""One reconciliation run: scan in id order, confirm what differs, report it, and in repair mode enqueue the repairs.

Memory is bounded: one page of the truth and the objects of its id range at a time. Orphans are the one kind whose
repair destroys data, and the one that a wrong connection produces en masse. So their ids are put aside, the run stops
as soon as they exceed a fraction of what the target holds, and they are repaired only after a whole run without that.

Source: seed `002` section 10; design section 7.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from memplane.errors import MemplaneError
from memplane.outbox.enqueue import enqueue_repairs
from memplane.outbox.events import ProjectionTarget
from memplane.reconcile import runs
from memplane.reconcile.confirm import Mismatch, confirm, unique_repairs
from memplane.reconcile.diff import Difference, Drift, diff_edges, diff_objects
from memplane.reconcile.inventory import Inventory, inventory_of
from memplane.reconcile.report import Kind, Mode, Progress, ProgressCallback, Report, Sample
from memplane.reconcile.truth import FIRST_ID, LAST_ID, edges_between, estimate, page
from memplane.schema.database import Database
from memplane.signal import Signal

PAGE = 2000
"""Memories compared at a time."""

CONFIRM = 500
"""Candidates looked at again, and repaired, in one go."""

SAMPLES = 100
"""Mismatches that a run keeps as examples."""

SAVE_PAGES = 10
"""After so many pages the run's record is updated."""

ORPHAN_FRACTION = 0.1
"""A run that finds more orphans than this fraction of the target's objects stops, unless told otherwise."""

ORPHAN_FLOOR = 100
"""So many orphans are never suspicious."""


class TooManyOrphans(MemplaneError):  # noqa: N818 - reads as what was found
    """The target holds more than the truth explains: is it the right database?"""

    def __init__(self, found: int, held: int) -> None:
        super().__init__(
            f"More than {found} of about {held} objects have no memory in the truth. None of them was touched. "
            "If the truth is right, run again and allow orphans"
        )


async def reconcile(
    database: Database,
    target: ProjectionTarget,
    *,
    mode: Mode,
    kind: Kind = "full",
    signal: Signal | None = None,
    progress: ProgressCallback | None = None,
    orphan_fraction: float = ORPHAN_FRACTION,
) -> Report:
    """Compare a target with the truth and return what was found; repairs are events for the target's workers.

    `orphan_fraction` (0 to 1; 1 allows any number) is the share of orphans at which the run stops. A run that was
    aborted by `signal` ends as `cancelled`, one that stopped on its own as `failed`; both are recorded. Raises
    `TargetUnavailable`, `IdentityError`, whatever else ends it, after recording the run as failed.
    """
    inventory = await inventory_of(target)
    report = await runs.start(database, inventory.target, kind, mode)
    run = _Run(
        database, inventory, report, signal=signal or Signal(), progress=progress, orphan_fraction=orphan_fraction
    )
    try:
        await run.work()
    except TooManyOrphans as stop:
        report.state, report.error = "failed", str(stop)
    except (Exception, asyncio.CancelledError) as error:
        report.state, report.error = "failed", type(error).__name__
        raise
    finally:
        await runs.save(database, report, run.position)
    return report


@dataclass(slots=True)
class _Page:
    """The differences of one id range, and where it ends."""

    high: int
    scanned: int
    candidates: list[Difference]


class _Run:
    def __init__(
        self,
        database: Database,
        inventory: Inventory,
        report: Report,
        *,
        signal: Signal,
        progress: ProgressCallback | None,
        orphan_fraction: float,
    ) -> None:
        self.database = database
        self.inventory = inventory
        self.report = report
        self.signal = signal
        self.progress = progress
        self.orphan_fraction = orphan_fraction
        self.position = 0
        self._orphans: array[int] = array("q")
        self._held = 0
        self._total = 0

    async def work(self) -> None:
        self._total = await estimate(self.database)
        self._held = await self.inventory.count()
        pages = 0
        while self.position < LAST_ID:
            if self.signal.aborted:
                self.report.state = "cancelled"
                return
            await self._compare(await self._scan(self.position))
            pages += 1
            if pages % SAVE_PAGES == 0:
                await runs.save(self.database, self.report, self.position)
        await self._repair_orphans()
        self.report.state = "completed"

    async def _scan(self, low: int) -> _Page:
        """Read one page of the truth and the target's objects of the same id range, and compare them."""
        if low == 0:
            low = FIRST_ID
        truths = await page(self.database, self.inventory.needs, low, PAGE)
        high = truths[-1].memory_id if len(truths) == PAGE else LAST_ID
        held, held_edges = await asyncio.gather(
            self.inventory.objects_between(low, high), self.inventory.edges_between(low, high)
        )
        candidates = list(diff_objects([self.inventory.expected(truth) for truth in truths], held))
        if self.inventory.holds_edges:
            wanted = await edges_between(self.database, low, high)
            candidates += diff_edges(wanted, held_edges.by_source, held_edges.bare, self.inventory.backend)
        return _Page(high, len(truths), candidates)

    async def _compare(self, scanned: _Page) -> None:
        """Confirm a page's candidates, count and repair them."""
        for start in range(0, len(scanned.candidates), CONFIRM):
            found = await confirm(self.database, self.inventory, scanned.candidates[start : start + CONFIRM])
            self.report.count(
                [Sample(one.difference.memory_id, one.difference.drift, one.difference.detail) for one in found],
                SAMPLES,
            )
            self._put_aside([one for one in found if one.difference.drift is Drift.ORPHAN])
            await self._repair([one for one in found if one.difference.drift is not Drift.ORPHAN])
        self.position = scanned.high
        self.report.scanned += scanned.scanned
        if self.progress is not None:
            mismatches = sum(self.report.mismatches.values())
            self.progress(Progress(self.position, self.report.scanned, self._total, mismatches))

    def _put_aside(self, orphans: Sequence[Mismatch]) -> None:
        self._orphans.extend(one.difference.memory_id for one in orphans)
        allowed = max(ORPHAN_FLOOR, self.orphan_fraction * self._held)
        if self.orphan_fraction < 1 and len(self._orphans) > allowed:
            raise TooManyOrphans(int(allowed), self._held)

    async def _repair_orphans(self) -> None:
        """Orphans were put aside a while ago, so each is looked at again."""
        if self.report.mode == "audit":
            return
        for start in range(0, len(self._orphans), CONFIRM):
            if self.signal.aborted:
                return
            again = [Difference(memory_id, Drift.ORPHAN) for memory_id in self._orphans[start : start + CONFIRM]]
            found = await confirm(self.database, self.inventory, again)
            await self._repair([one for one in found if one.difference.drift is Drift.ORPHAN])

    async def _repair(self, mismatches: Sequence[Mismatch]) -> None:
        """Enqueue repairs, one transaction per type, so that what was repaired can be counted by type."""
        if self.report.mode == "audit":
            return
        for drift in sorted({one.difference.drift for one in mismatches}):
            repairs = unique_repairs([one for one in mismatches if one.difference.drift is drift])
            async with self.database.transaction() as connection:
                inserted = await enqueue_repairs(connection, self.database, repairs)
            self.report.add_repaired(drift, inserted)
