"""What the runs that ended say: to purge, which must be sure, and to whoever keeps the house.

How a run records itself is in `record.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from memplane.outbox.events import Target
from memplane.schema.database import Connection, Database


@dataclass(frozen=True, slots=True)
class CleanRun:
    """A full run of a target that went through everything without an error, from its very beginning.

    `started_at` is when it first began, even if it was interrupted and taken up again, so what was true before that
    moment has been seen by all of it. The run still may name memories: see `named`.
    """

    run_id: int
    target: Target
    started_at: datetime
    finished_at: datetime


# Only of the generation that is in use: a run over a collection that has been replaced says nothing about the new one.
_LAST_CLEAN = """
SELECT DISTINCT ON (r.target) r.id, r.target, r.started_at, r.finished_at
FROM {schema}.reconciliation_run AS r
JOIN {schema}.projection_generation AS g ON g.id = r.generation_id AND g.target = r.target AND g.state = 'active'
WHERE r.kind = 'full' AND r.state = 'completed' AND r.error IS NULL AND r.target = ANY ($1::text[])
ORDER BY r.target, r.started_at DESC, r.id DESC
"""

_NAMED = """
SELECT DISTINCT memory_id FROM {schema}.reconciliation_finding
WHERE run_id = ANY ($1::bigint[]) AND memory_id = ANY ($2::bigint[])
"""


async def last_clean_full_runs(
    database: Database, targets: Collection[Target], *, connection: Connection | None = None
) -> dict[Target, CleanRun]:
    """The newest complete, error-free full run of each target; a target without one is left out.

    Purge may remove a tombstone (seed `002` section 10.3, design section 7) when every enabled target is in the
    result, every `started_at` is later than the moment at which the last event of the memory was processed, and
    `named` does not name it. `connection`: read within the caller's transaction.
    """
    if connection is None:
        async with database.acquire() as own:
            return await last_clean_full_runs(database, targets, connection=own)
    rows = await connection.fetch(database.sql(_LAST_CLEAN), [target.value for target in targets])
    return {
        Target(row["target"]): CleanRun(row["id"], Target(row["target"]), row["started_at"], row["finished_at"])
        for row in rows
    }


async def named(
    database: Database, runs: Collection[CleanRun], memory_ids: Sequence[int], *, connection: Connection | None = None
) -> frozenset[int]:
    """Those of `memory_ids` that one of the runs names: it has met something of them in its target.

    Complete for memories that were dead when the run met them, in audit and in repair runs alike, whether the
    difference was repaired later or not. In SQL: a row of `reconciliation_finding` with the run's id and the memory's.
    """
    if connection is None:
        async with database.acquire() as own:
            return await named(database, runs, memory_ids, connection=own)
    rows = await connection.fetch(database.sql(_NAMED), [run.run_id for run in runs], list(memory_ids))
    return frozenset(row["memory_id"] for row in rows)


# The newest of each target that answers a question stays: for purge, for the next incremental run, for the status.
_FORGET = """
WITH kept AS (
    SELECT DISTINCT ON (target, kind, state) id FROM {schema}.reconciliation_run
    WHERE state <> 'running' ORDER BY target, kind, state, started_at DESC, id DESC
),
old AS (
    SELECT id FROM {schema}.reconciliation_run
    WHERE state <> 'running' AND finished_at < statement_timestamp() - $1 * interval '1 second'
      AND id NOT IN (SELECT id FROM kept)
    ORDER BY id LIMIT $2 FOR UPDATE SKIP LOCKED
),
gone AS (
    DELETE FROM {schema}.reconciliation_run AS r USING old WHERE r.id = old.id
    RETURNING r.target, r.mismatches, r.repaired
),
counted AS (
    INSERT INTO {schema}.reconciliation_total AS t (target, type, mismatches, repaired)
    SELECT g.target, k.type, COALESCE(sum((g.mismatches ->> k.type)::bigint), 0),
           COALESCE(sum((g.repaired ->> k.type)::bigint), 0)
    FROM gone AS g CROSS JOIN LATERAL (
        SELECT jsonb_object_keys(g.mismatches) AS type UNION SELECT jsonb_object_keys(g.repaired)) AS k
    GROUP BY g.target, k.type ORDER BY g.target, k.type
    ON CONFLICT (target, type) DO UPDATE
    SET mismatches = t.mismatches + excluded.mismatches, repaired = t.repaired + excluded.repaired
)
SELECT count(*) FROM gone
"""


async def forget_runs(database: Database, *, older_than_seconds: float, batch: int = 100) -> int:
    """Delete ended runs that are older, with what they name, in one small transaction; returns how many.

    What they had counted stays in the metrics (`reconciliation_total`). The newest run of each target, kind and state
    is never deleted. Call it again while it returns `batch`.
    """
    async with database.acquire() as connection:
        return int(await connection.fetchval(database.sql(_FORGET), older_than_seconds, batch))
