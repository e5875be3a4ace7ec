"""Runs as an operator sees them, read from PostgreSQL alone: for the command line, the admin API and the status."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from memplane.reconcile.report import Kind, Mode, Sample, State
from memplane.schema.database import Database

_COLUMNS = """r.id, r.target, r.kind, r.mode, r.state, r.started_at, r.finished_at, r.heartbeat_at, r.resumed,
       r.scanned, r.unchecked, r.mismatches, r.repaired, r.samples, r.reason, r.error"""

_RUNS = f"""
SELECT {_COLUMNS} FROM {{schema}}.reconciliation_run AS r
WHERE $1::text IS NULL OR r.target = $1
ORDER BY r.id DESC LIMIT $2
"""

_RUN = f"SELECT {_COLUMNS} FROM {{schema}}.reconciliation_run AS r WHERE r.id = $1"

# What was compared with a generation that is being built, or has gone, is no drift of the one in use.
_NEWEST = f"""
SELECT DISTINCT ON (r.target) {_COLUMNS} FROM {{schema}}.reconciliation_run AS r
WHERE r.kind = $1 AND r.state = 'completed'
  AND (r.generation_id IS NULL
       OR r.generation_id IN (SELECT g.id FROM {{schema}}.projection_generation AS g WHERE g.state = 'active'))
ORDER BY r.target, r.started_at DESC
"""

_FINDINGS = """
SELECT memory_id, type, detail FROM {schema}.reconciliation_finding
WHERE run_id = $1 AND memory_id > $2 ORDER BY memory_id, type LIMIT $3
"""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run with what it counted. A `running` one shows its last sign of life in `heartbeat_at`."""

    id: int
    target: str
    kind: Kind
    mode: Mode
    state: State
    started_at: datetime
    finished_at: datetime | None
    heartbeat_at: datetime | None
    resumed: int
    scanned: int
    unchecked: int
    mismatches: Mapping[str, int]
    repaired: Mapping[str, int]
    samples: tuple[Sample, ...]
    reason: str | None
    error: str | None

    @property
    def differences(self) -> int:
        return sum(self.mismatches.values())


async def list_runs(database: Database, target: str | None = None, limit: int = 20) -> list[RunSummary]:
    """The newest runs first, of one target or of all."""
    async with database.acquire() as connection:
        rows = await connection.fetch(database.sql(_RUNS), target, limit)
    return [_summary(row) for row in rows]


async def read_run(database: Database, run_id: int) -> RunSummary | None:
    """One run; None when there is no such one."""
    async with database.acquire() as connection:
        row = await connection.fetchrow(database.sql(_RUN), run_id)
    return None if row is None else _summary(row)


async def newest_completed(database: Database, kind: Kind) -> dict[str, RunSummary]:
    """The newest complete run of a kind of each target's active generation, by target."""
    async with database.acquire() as connection:
        rows = await connection.fetch(database.sql(_NEWEST), kind)
    return {row["target"]: _summary(row) for row in rows}


async def list_findings(database: Database, run_id: int, *, after: int = -(2**62), limit: int = 100) -> list[Sample]:
    """What a run names, by memory id above `after`: all dead memories, and the first few thousands of the living."""
    async with database.acquire() as connection:
        rows = await connection.fetch(database.sql(_FINDINGS), run_id, after, limit)
    return [Sample(row["memory_id"], row["type"], row["detail"]) for row in rows]


def _summary(row: Mapping[str, Any]) -> RunSummary:
    fields = dict(row)
    for name in ("mismatches", "repaired", "samples"):
        value = fields[name]
        fields[name] = json.loads(value) if isinstance(value, str) else value
    fields["samples"] = tuple(Sample(**sample) for sample in fields["samples"])
    return RunSummary(**fields)
