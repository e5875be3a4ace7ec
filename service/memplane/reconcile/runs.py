"""The record of runs: `reconciliation_run`. Metrics, the admin API and `purge` read it."""

from __future__ import annotations

import json

from memplane.outbox.events import Target
from memplane.reconcile.report import Kind, Mode, Report
from memplane.schema.database import Database

_START = """
INSERT INTO {schema}.reconciliation_run (target, kind, mode, position, watermark)
VALUES ($1, $2, $3, 0, pg_snapshot_xmin(pg_current_snapshot())) RETURNING id
"""

_SAVE = """
UPDATE {schema}.reconciliation_run
SET state = $2, position = $3, scanned = $4, mismatches = $5::jsonb, repaired = $6::jsonb, samples = $7::jsonb,
    error = $8, finished_at = CASE WHEN $2 = 'running' THEN NULL ELSE clock_timestamp() END
WHERE id = $1
"""


async def start(database: Database, target: Target, kind: Kind, mode: Mode) -> Report:
    """A new run. Its watermark is the oldest transaction that may still commit something the run does not see."""
    async with database.acquire() as connection:
        run_id = await connection.fetchval(database.sql(_START), target.value, kind, mode)
    return Report(int(run_id), target, kind, mode)


async def save(database: Database, report: Report, position: int) -> None:
    """Record how far the run is: everything up to memory id `position` is compared."""
    samples = [
        {"memory_id": sample.memory_id, "type": sample.type, "detail": sample.detail} for sample in report.samples
    ]
    async with database.acquire() as connection:
        await connection.execute(
            database.sql(_SAVE),
            report.run_id,
            report.state,
            position,
            report.scanned,
            json.dumps(report.mismatches),
            json.dumps(report.repaired),
            json.dumps(samples),
            report.error,
        )
