"""Reconciliation runs and the drift they found."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from memplane.api.admin.models import ReconciliationRun
from memplane.schema.database import Database

_COLUMNS = "id, target, kind, mode, state, started_at, finished_at, scanned, mismatches, repaired, error"

_RUNS = f"""
SELECT {_COLUMNS}
FROM {{schema}}.reconciliation_run
WHERE $1::text IS NULL OR target = $1
ORDER BY id DESC
LIMIT $2
"""

_NEWEST = f"""
SELECT DISTINCT ON (target) {_COLUMNS}
FROM {{schema}}.reconciliation_run
WHERE kind = $1 AND state = 'completed'
ORDER BY target, started_at DESC
"""


async def list_runs(database: Database, target: str | None, limit: int) -> list[ReconciliationRun]:
    """The newest runs first."""
    async with database.acquire() as connection:
        return [_run(row) for row in await connection.fetch(database.sql(_RUNS), target, limit)]


async def newest_full_runs(database: Database, targets: Sequence[str]) -> dict[str, ReconciliationRun | None]:
    """The newest finished full run of each target; None for a target without one."""
    return await newest_runs(database, targets, "full")


async def newest_runs(
    database: Database, targets: Sequence[str], kind: Literal["full", "incremental"]
) -> dict[str, ReconciliationRun | None]:
    """The newest finished run of a kind of each target; None for a target without one."""
    async with database.acquire() as connection:
        found = {row["target"]: _run(row) for row in await connection.fetch(database.sql(_NEWEST), kind)}
    return {target: found.get(target) for target in targets}


def drift_of(run: ReconciliationRun | None) -> int | None:
    """How many differences a run found; None without a run."""
    return None if run is None else sum(run.mismatches.values())


def _run(row: Mapping[str, Any]) -> ReconciliationRun:
    fields = dict(row)
    for name in ("mismatches", "repaired"):
        value = fields[name]
        counts = json.loads(value) if isinstance(value, str) else value
        fields[name] = {kind: int(count) for kind, count in counts.items()}
    return ReconciliationRun(**fields)
