"""What is known of runs that ended: to purge, to the metrics, and after they were forgotten."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from memplane.outbox.events import Target
from memplane.outbox.metrics import DatabaseMetrics
from memplane.reconcile import forget_runs, last_clean_full_runs
from memplane.reconcile.listing import list_findings, list_runs, newest_completed, read_run
from memplane.reconcile.record import LIVING_FINDINGS, Finding, RunRecord
from memplane.reconcile.report import Report
from memplane.schema.database import Database

RUN = """
INSERT INTO {schema}.reconciliation_run
    (target, kind, mode, state, started_at, finished_at, mismatches, repaired, generation_id)
VALUES ($1, $2, 'repair', $3, now() - $4 * interval '1 hour', now() - $4 * interval '1 hour',
        '{"missing": 2, "orphan": 1}', '{"missing": 2}', $5) RETURNING id
"""

GENERATION = """
INSERT INTO {schema}.projection_generation (target, state, collection) VALUES ('milvus', $1, 'c') RETURNING id
"""


async def insert(database: Database, statement: str, *arguments: object) -> int:
    async with database.acquire() as connection:
        return int(await connection.fetchval(database.sql(statement), *arguments))


async def exported(database: Database, name: str) -> dict[str, float]:
    """The samples of a metric by their labels."""
    registry = CollectorRegistry()
    await DatabaseMetrics(database, registry).refresh()
    lines = generate_latest(registry).decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line.startswith(name)}


async def test_counters_do_not_fall_when_old_runs_are_forgotten(database: Database) -> None:
    for hours in (100, 90, 80, 1):
        await insert(database, RUN, "milvus", "full", "completed", hours, None)
    before = await exported(database, "memory_reconciliation_mismatch_total")
    assert before['memory_reconciliation_mismatch_total{target="milvus",type="missing"}'] == 8
    assert await forget_runs(database, older_than_seconds=50 * 3600, batch=2) == 2
    assert await forget_runs(database, older_than_seconds=50 * 3600, batch=2) == 1
    assert await forget_runs(database, older_than_seconds=0, batch=2) == 0, "the newest one is kept"
    assert len(await list_runs(database)) == 1
    assert await exported(database, "memory_reconciliation_mismatch_total") == before
    repaired = await exported(database, "memory_reconciliation_repaired_total")
    assert repaired['memory_reconciliation_repaired_total{target="milvus",type="missing"}'] == 8


async def test_the_last_complete_run_is_exported(database: Database) -> None:
    await insert(database, RUN, "milvus", "full", "completed", 2, None)
    await insert(database, RUN, "milvus", "full", "failed", 1, None)
    found = await exported(database, "memory_reconciliation_last_completed_seconds")
    assert list(found) == ['memory_reconciliation_last_completed_seconds{kind="full",target="milvus"}']


@pytest.mark.parametrize(
    ("kind", "state", "generation", "counts"),
    [
        ("full", "completed", "active", True),
        ("full", "completed", "retired", False),
        ("full", "completed", None, False),
        ("full", "failed", "active", False),
        ("full", "cancelled", "active", False),
        ("incremental", "completed", "active", False),
    ],
)
async def test_only_a_complete_full_run_of_the_generation_in_use_counts_for_purge(
    database: Database, kind: str, state: str, generation: str | None, counts: bool
) -> None:
    number = None if generation is None else await insert(database, GENERATION, generation)
    run = await insert(database, RUN, "milvus", kind, state, 1, number)
    found = await last_clean_full_runs(database, [Target.MILVUS, Target.NEO4J])
    assert [one.run_id for one in found.values()] == ([run] if counts else [])
    newest: Any = (await newest_completed(database, "full")).get("milvus")
    # Runs of a release that did not record the generation still tell the drift.
    assert (newest is not None) == (counts or (generation, kind, state) == (None, "full", "completed"))


async def test_findings_about_the_living_are_bounded(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memplane.reconcile.record.LIVING_FINDINGS", 2)
    assert LIVING_FINDINGS == 10_000
    run = await insert(database, RUN, "milvus", "full", "running", 0, None)
    async with database.transaction() as connection:
        holder = await connection.fetchval(
            database.sql("UPDATE {schema}.reconciliation_run SET holder = gen_random_uuid() RETURNING holder")
        )
        record = RunRecord(
            database, Report(run, Target.MILVUS, "full", "audit"), holder, position=0, watermark=3, since=None
        )
        living = [Finding(number, "missing", living=True) for number in range(5)]
        await record.step(connection, 10, [*living, Finding(7, "orphan"), Finding(8, "orphan")])
        await record.step(connection, 20, [Finding(9, "missing", living=True), Finding(10, "unsettled")])
    found = await list_findings(database, run)
    assert [one.memory_id for one in found] == [0, 1, 7, 8, 10]
    assert [one.memory_id for one in await list_findings(database, run, after=1, limit=2)] == [7, 8]
    assert await read_run(database, run + 1) is None
