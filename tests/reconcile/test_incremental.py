"""Incremental runs: what has changed since the last complete run, late commits included, and when everything is due."""

from __future__ import annotations

import pytest

from memplane.outbox.events import ProjectionTarget
from memplane.projections.milvus import MilvusProjection
from memplane.projections.neo4j import Neo4jProjection
from memplane.reconcile import Report, reconcile
from memplane.schema.database import Database
from memplane.settings import ReconcileSettings
from tests.reconcile.support import cypher, delete_row, drain, edit_row, insert_row, pending, populated


@pytest.fixture(params=["milvus", "neo4j"])
def target(request: pytest.FixtureRequest) -> ProjectionTarget:
    found: ProjectionTarget = request.getfixturevalue(request.param)
    return found


async def incremental(database: Database, target: ProjectionTarget, **options: object) -> Report:
    return await reconcile(database, target, mode="repair", kind="incremental", **options)  # type: ignore[arg-type]


async def lose(target: ProjectionTarget, *memory_ids: int) -> None:
    for memory_id in memory_ids:
        if isinstance(target, MilvusProjection):
            await delete_row(target, memory_id)
        else:
            assert isinstance(target, Neo4jProjection)
            await cypher(target, "MATCH (m:Memory {backend: $backend, memory_id: $id}) DETACH DELETE m", id=memory_id)


async def changed_since_last_run(database: Database) -> set[int]:
    """The live memories of the next incremental run: usually those changed since; more while others of the server's
    transactions have been open for longer."""
    async with database.acquire() as connection:
        rows = await connection.fetch(
            database.sql(
                "SELECT id FROM {schema}.long_term_memory WHERE deleted_at IS NULL AND changed_xid >="
                " (SELECT watermark FROM {schema}.reconciliation_run ORDER BY id DESC LIMIT 1)"
            )
        )
    return {row["id"] for row in rows}


async def test_the_first_run_compares_everything_and_says_why(database: Database, target: ProjectionTarget) -> None:
    await populated(database, target)
    first = await incremental(database, target)
    assert (first.kind, first.scanned) == ("full", 5)
    assert "no complete run" in str(first.reason)
    changed = await changed_since_last_run(database)
    second = await incremental(database, target)
    assert (second.kind, second.scanned, second.reason) == ("incremental", len(changed), None)


async def test_changes_deletions_and_edges_are_compared_and_nothing_else(
    database: Database, target: ProjectionTarget
) -> None:
    world, ids = await populated(database, target, 8)
    await reconcile(database, target, mode="audit")
    await world.update(0, "x", [("likes", 5)])
    await world.update(1, "y", None)
    await world.delete(2)
    await drain(database, target)
    await lose(target, ids[0], ids[1], ids[7])
    changed = await changed_since_last_run(database)
    assert {ids[0], ids[1]} <= changed
    # Memory 7 is lost too; unless it has changed, that is for a full run to find.
    unseen = {ids[7]} - changed
    report = await incremental(database, target)
    edges = {} if isinstance(target, MilvusProjection) else {"edge_missing": 1}
    assert (report.kind, report.mismatches) == ("incremental", {"missing": 3 - len(unseen), **edges})
    await drain(database, target)
    assert (await reconcile(database, target, mode="audit")).mismatches == ({"missing": 1} if unseen else {})


async def test_a_tombstone_that_came_back_is_an_orphan(database: Database, milvus: MilvusProjection) -> None:
    world, ids = await populated(database, milvus)
    await reconcile(database, milvus, mode="audit")
    row = await insert_row(milvus, ids[0])
    await world.delete(0)
    await drain(database, milvus)
    await insert_row(milvus, ids[0], row)
    report = await incremental(database, milvus)
    assert (report.kind, report.mismatches, report.repaired) == ("incremental", {"orphan": 1}, {"orphan": 1})
    await drain(database, milvus)
    assert (await reconcile(database, milvus, mode="audit")).clean


async def test_a_transaction_that_commits_late_is_seen_by_the_next_run(
    database: Database, milvus: MilvusProjection
) -> None:
    """Its id is lower than those of runs that began and ended before it committed."""
    _, ids = await populated(database, milvus)
    await reconcile(database, milvus, mode="audit")
    async with database.transaction() as late:
        await late.execute(
            database.sql(
                "UPDATE {schema}.long_term_memory SET version = version + 1, changed_xid = pg_current_xact_id()"
                " WHERE id = $1"
            ),
            ids[0],
        )
        assert (await incremental(database, milvus)).mismatches == {}
        assert (await incremental(database, milvus)).mismatches == {}
    assert (await incremental(database, milvus)).mismatches == {"stale": 1}


async def test_what_was_in_flight_is_looked_at_by_the_next_run(database: Database, milvus: MilvusProjection) -> None:
    """An event was on the way, so the run could not tell; then the event was lost."""
    world, ids = await populated(database, milvus)
    await reconcile(database, milvus, mode="audit")
    await world.update(0, "x", None)
    assert (await incremental(database, milvus)).mismatches == {}
    async with database.acquire() as connection:
        await connection.execute(database.sql("DELETE FROM {schema}.memory_outbox WHERE status = 'pending'"))
    # Another change moves the database on, so that only the kept watermark leads back to the first one.
    await world.update(1, "y", None)
    await drain(database, milvus)
    report = await incremental(database, milvus)
    assert (report.kind, report.mismatches) == ("incremental", {"stale": 1})
    assert str(ids[0]) in str(report.samples)


async def test_an_audit_that_found_something_moves_no_watermark(database: Database, milvus: MilvusProjection) -> None:
    world, ids = await populated(database, milvus)
    await reconcile(database, milvus, mode="audit")
    await world.update(0, "x", None)
    await drain(database, milvus)
    await delete_row(milvus, ids[0])
    for _ in range(2):
        audit = await reconcile(database, milvus, mode="audit", kind="incremental")
        assert (audit.kind, audit.mismatches) == ("incremental", {"missing": 1})
    assert (await incremental(database, milvus)).repaired == {"missing": 1}
    await drain(database, milvus)
    assert (await incremental(database, milvus)).mismatches == {}


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        ("lineage = 'another server/1'", "restored, moved or promoted"),
        ("watermark = '9000000000000000'", "older than the last run"),
        ("generation_id = -1", "no complete run"),
    ],
)
async def test_a_watermark_of_another_history_is_not_trusted(
    database: Database, milvus: MilvusProjection, spoil: str, reason: str
) -> None:
    _, ids = await populated(database, milvus)
    await reconcile(database, milvus, mode="audit")
    async with database.acquire() as connection:
        await connection.execute(database.sql(f"UPDATE {{schema}}.reconciliation_run SET {spoil}"))
    await delete_row(milvus, ids[0])
    report = await incremental(database, milvus)
    assert (report.kind, report.mismatches) == ("full", {"missing": 1})
    assert reason in str(report.reason)


async def test_too_many_changes_make_it_a_full_run(database: Database, milvus: MilvusProjection) -> None:
    world, ids = await populated(database, milvus)
    await reconcile(database, milvus, mode="audit")
    for place in range(3):
        await world.update(place, "x", None)
    await drain(database, milvus)
    await edit_row(milvus, ids[4], {"category": "by hand"})
    report = await incremental(database, milvus, settings=ReconcileSettings(max_changes=2))
    assert (report.kind, report.scanned, report.mismatches) == ("full", 5, {"hash": 1})
    assert "more than 2" in str(report.reason)


async def test_dead_events_are_looked_at_by_every_run(database: Database, milvus: MilvusProjection) -> None:
    world, _ = await populated(database, milvus)
    await reconcile(database, milvus, mode="audit")
    await world.update(0, "x", None)
    async with database.acquire() as connection:
        await connection.execute(
            database.sql("UPDATE {schema}.memory_outbox SET status = 'dead' WHERE status = 'pending' AND target = $1"),
            "milvus",
        )
    assert (await incremental(database, milvus)).repaired == {"stale": 1}
    async with database.acquire() as connection:
        await connection.execute(
            database.sql("UPDATE {schema}.memory_outbox SET status = 'dead' WHERE status = 'pending' AND target = $1"),
            "milvus",
        )
    for _ in range(2):
        assert (await incremental(database, milvus)).mismatches == {"repair_ineffective": 1}
    assert await pending(database, milvus) == 0
