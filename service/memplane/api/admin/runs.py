"""Reconciliation runs and the drift they found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from memplane.api.admin.models import Finding, ReconciliationRun, ReconciliationRunDetail
from memplane.reconcile import listing
from memplane.schema.database import Database


async def list_runs(database: Database, target: str | None, limit: int) -> list[ReconciliationRun]:
    """The newest runs first."""
    return [ReconciliationRun.model_validate(run) for run in await listing.list_runs(database, target, limit)]


async def read_run(database: Database, run_id: int, *, after: int | None, limit: int) -> ReconciliationRunDetail | None:
    """One run with what it names, by memory id above `after`; None when there is no such run."""
    run = await listing.read_run(database, run_id)
    if run is None:
        return None
    start = -(2**62) if after is None else after
    found = await listing.list_findings(database, run_id, after=start, limit=limit)
    shown = ReconciliationRun.model_validate(run)
    return ReconciliationRunDetail(
        **shown.model_dump(),
        samples=[Finding(memory_id=str(one.memory_id), type=one.type, detail=one.detail) for one in run.samples],
        findings=[Finding(memory_id=str(one.memory_id), type=one.type, detail=one.detail) for one in found],
    )


async def newest_full_runs(database: Database, targets: Sequence[str]) -> dict[str, ReconciliationRun | None]:
    """The newest finished full run of each target; None for a target without one."""
    return await newest_runs(database, targets, "full")


async def newest_runs(
    database: Database, targets: Sequence[str], kind: Literal["full", "incremental"]
) -> dict[str, ReconciliationRun | None]:
    """The newest finished run of a kind of each target; None for a target without one."""
    found = await listing.newest_completed(database, kind)
    return {target: ReconciliationRun.model_validate(found[target]) if target in found else None for target in targets}


def drift_of(run: ReconciliationRun | None) -> int | None:
    """How many differences a run found; None without a run."""
    return None if run is None else sum(run.mismatches.values())
