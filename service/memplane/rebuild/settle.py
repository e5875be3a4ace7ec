"""Until nothing differs: wait for the workers, compare, repair, and compare again (design section 7).

The comparison is the reconciler's. What it repairs, workers project, so this waits for them before it looks again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from memplane.outbox.events import ProjectionTarget, Target
from memplane.outbox.patience import rest
from memplane.rebuild import runs
from memplane.rebuild.errors import RebuildFailed
from memplane.rebuild.outlast import outlast
from memplane.rebuild.report import Progress, ProgressCallback
from memplane.rebuild.runs import Run
from memplane.reconcile import AlreadyRunning, Report, reconcile
from memplane.reconcile import Progress as Compared
from memplane.reconcile.inventory import Inventory
from memplane.schema.database import Database
from memplane.signal import Signal

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0

BUSY_SECONDS = 5.0

TRIED = 5
"""An event that was refused so often is not waited for, when memories that cannot be projected are accepted."""

NEVER = 2**31 - 1

INEFFECTIVE = "repair_ineffective"
"""The kind of difference that no repair helps."""

_NEWEST = "SELECT COALESCE(max(id), 0) FROM {schema}.memory_outbox"

COUNTED = 100_000
"""So many waiting events are counted, for the progress; a million of them must not be counted every second."""

_WAITING = """
SELECT (SELECT count(*) FROM (
            SELECT FROM {schema}.memory_outbox
            WHERE target = $1 AND status = 'pending' AND available_at > '-infinity' AND id <= $2 AND attempts < $3
            LIMIT $4) AS pending)
     + (SELECT count(*) FROM {schema}.memory_outbox
        WHERE target = $1 AND status = 'processing' AND locked_until > '-infinity' AND id <= $2)
"""


async def wait_for_workers(
    database: Database,
    target: Target,
    signal: Signal,
    told: Callable[[int], None] = lambda _: None,
    *,
    tried: int = NEVER,
) -> bool:
    """Wait until the events that exist now are processed or dead. False when `signal` aborts first.

    Workers make it true, however long that takes; `told` gets the number that is left, about once a second. Events
    with `tried` attempts are not waited for.
    """
    async with database.acquire() as connection:
        newest = await connection.fetchval(database.sql(_NEWEST))
    while not signal.aborted:
        async with database.acquire() as connection:
            left = await connection.fetchval(database.sql(_WAITING), target.value, newest, tried, COUNTED)
        if not left:
            return True
        told(int(left))
        await rest(signal, POLL_SECONDS)
    return False


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is compared. `inventory`: another generation than the one in use.

    `accept_ineffective`: memories that no repair helps (their events are dead) do not keep it from being settled, and
    events that were refused a few times are not waited for.
    """

    target: ProjectionTarget
    rounds: int
    inventory: Inventory | None = None
    accept_ineffective: bool = False


async def settle(
    database: Database, what: Comparison, run: Run, *, signal: Signal, progress: ProgressCallback
) -> int | None:
    """Compare and repair until a whole comparison finds nothing, and no event of it is left.

    Returns how many repairs that took; None when `signal` aborted. Raises `RebuildFailed` when so many comparisons
    were not enough, one of them stopped on its own, or memories are left that no repair helps.
    """
    repaired, name = 0, what.target.name
    for _ in range(what.rounds):
        if not await _waited(database, what, run, signal, progress):
            return None
        report = await _compare(database, what, run, signal, progress)
        if report is None:
            return None
        if report.state != "completed":
            raise RebuildFailed(f"A comparison of {name} stopped: {report.error}")
        repaired += sum(report.repaired.values())
        left = {kind for kind in report.mismatches if kind != INEFFECTIVE}
        if not left and INEFFECTIVE in report.mismatches and not what.accept_ineffective:
            count = report.mismatches[INEFFECTIVE]
            raise RebuildFailed(
                f"{count} memories cannot be projected: see `memplane outbox list --status dead --target {name}`. "
                "Remove the reason and replay them, or run it again and accept them with --accept-ineffective"
            )
        if not left:
            return repaired if await _waited(database, what, run, signal, progress) else None
        log.info("differences are being repaired", extra={"target": name.value, "found": report.mismatches})
    raise RebuildFailed(f"After {what.rounds} comparisons {name} still differs from the truth: are its workers well?")


async def _compare(
    database: Database, what: Comparison, run: Run, signal: Signal, progress: ProgressCallback
) -> Report | None:
    """One comparison with repairs; None when `signal` aborted. Waits while another process makes the same one."""

    def compared(at: Compared) -> None:
        run.done, run.total = at.scanned, max(at.total, at.scanned)
        progress(Progress(run.stage, run.done, run.total, f"{at.mismatches} differences"))

    async def once() -> Report:
        return await reconcile(
            database,
            what.target,
            mode="repair",
            kind="full",
            signal=signal,
            progress=compared,
            inventory=what.inventory,
        )

    while not signal.aborted:
        try:
            report = await outlast(once, signal)
        except AlreadyRunning:
            progress(Progress(run.stage, run.done, run.total, "waiting for another comparison to end"))
            await rest(signal, BUSY_SECONDS)
            continue
        await runs.save(database, run)
        return None if report.state == "cancelled" else report
    return None


async def _waited(database: Database, what: Comparison, run: Run, signal: Signal, progress: ProgressCallback) -> bool:
    def told(left: int) -> None:
        progress(Progress(run.stage, run.done, run.total, f"waiting for the workers: {left} events"))

    tried = TRIED if what.accept_ineffective else NEVER
    return await wait_for_workers(database, what.target.name, signal, told, tried=tried)
