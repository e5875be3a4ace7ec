"""Until nothing differs: wait for the workers, compare, repair, and compare again (design section 7).

The comparison is the reconciler's. What it repairs, workers project, so this waits for them before it looks again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from memplane.outbox.events import ProjectionTarget, Target
from memplane.outbox.patience import rest
from memplane.rebuild import runs
from memplane.rebuild.errors import RebuildFailed
from memplane.rebuild.report import Progress, ProgressCallback
from memplane.rebuild.runs import Run
from memplane.reconcile import Progress as Compared
from memplane.reconcile import reconcile
from memplane.schema.database import Database
from memplane.signal import Signal

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0

TRIED = 5
"""An event that was refused so often is not waited for: the generation in use lacks it just as well."""

_NEWEST = "SELECT COALESCE(max(id), 0) FROM {schema}.memory_outbox"

_WAITING = """
SELECT (SELECT count(*) FROM {schema}.memory_outbox
        WHERE target = $1 AND status = 'pending' AND available_at > '-infinity' AND id <= $2 AND attempts < $3)
     + (SELECT count(*) FROM {schema}.memory_outbox
        WHERE target = $1 AND status = 'processing' AND locked_until > '-infinity' AND id <= $2)
"""


async def wait_for_workers(
    database: Database, target: Target, signal: Signal, told: Callable[[int], None] = lambda _: None
) -> bool:
    """Wait until the events that exist now are projected. False when `signal` aborts first.

    Workers make it true, however long that takes; `told` gets the number that is left, about once a second.
    """
    async with database.acquire() as connection:
        newest = await connection.fetchval(database.sql(_NEWEST))
    while not signal.aborted:
        async with database.acquire() as connection:
            left = await connection.fetchval(database.sql(_WAITING), target.value, newest, TRIED)
        if not left:
            return True
        told(int(left))
        await rest(signal, POLL_SECONDS)
    return False


async def settle(
    database: Database,
    target: ProjectionTarget,
    run: Run,
    *,
    rounds: int,
    signal: Signal,
    progress: ProgressCallback,
) -> int | None:
    """Compare and repair until a whole comparison finds nothing, and no event of it is left.

    Returns how many repairs that took; None when `signal` aborted. Raises `RebuildFailed` when `rounds` comparisons
    were not enough, or one of them stopped on its own.
    """
    repaired = 0
    for _ in range(rounds):
        if not await _waited(database, target.name, run, signal, progress):
            return None

        def compared(at: Compared) -> None:
            run.done, run.total = at.scanned, max(at.total, at.scanned)
            progress(Progress(run.stage, run.done, run.total, f"{at.mismatches} differences"))

        report = await reconcile(database, target, mode="repair", kind="full", signal=signal, progress=compared)
        await runs.save(database, run)
        if report.state == "cancelled":
            return None
        if report.state != "completed":
            raise RebuildFailed(f"A comparison of {target.name} stopped: {report.error}")
        repaired += sum(report.repaired.values())
        if not report.mismatches:
            return repaired if await _waited(database, target.name, run, signal, progress) else None
        log.info("differences are being repaired", extra={"target": target.name.value, "found": report.mismatches})
    raise RebuildFailed(f"After {rounds} comparisons {target.name} still differs from the truth: are its workers well?")


async def _waited(database: Database, target: Target, run: Run, signal: Signal, progress: ProgressCallback) -> bool:
    def told(left: int) -> None:
        progress(Progress(run.stage, run.done, run.total, f"waiting for the workers: {left} events"))

    return await wait_for_workers(database, target, signal, told)
