"""Runs against real targets: every kind of drift is found, repaired through the outbox, and gone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from memplane.errors import TargetUnavailable
from memplane.outbox.events import ProjectionTarget
from memplane.outbox.worker import OutboxWorker
from memplane.projections.clients import MilvusConnection, Neo4jConnection
from memplane.projections.milvus import MilvusProjection
from memplane.projections.neo4j import Neo4jProjection
from memplane.reconcile import Progress, Report, reconcile
from memplane.reconcile import run as run_module
from memplane.reconcile import scan as scan_module
from memplane.schema.database import Database
from memplane.settings import MilvusSettings, Neo4jSettings, OutboxSettings
from memplane.signal import Signal
from tests.projections.support import graph, rows, stored_embeddings
from tests.projections.world import World
from tests.reconcile.support import cypher, delete_row, drain, edit_row, pending, populated


@pytest.fixture(params=["milvus", "neo4j"])
def target(request: pytest.FixtureRequest) -> ProjectionTarget:
    found: ProjectionTarget = request.getfixturevalue(request.param)
    return found


async def audit(database: Database, target: ProjectionTarget) -> dict[str, int]:
    report = await reconcile(database, target, mode="audit")
    assert report.state == "completed"
    assert report.repaired == {}
    return report.mismatches


async def repaired(database: Database, target: ProjectionTarget) -> Report:
    """Repair, work the events off, and check that nothing differs any more."""
    report = await reconcile(database, target, mode="repair")
    assert report.state == "completed"
    await drain(database, target)
    assert await audit(database, target) == {}
    return report


async def test_what_was_projected_shows_no_drift(database: Database, target: ProjectionTarget) -> None:
    world, _ = await populated(database, target)
    await world.update(0, "x", [("likes", 1), ("knows", 2)])
    await world.delete(2)
    await drain(database, target)
    report = await reconcile(database, target, mode="audit")
    assert (report.clean, report.scanned) == (True, 4)


async def test_changes_on_their_way_are_no_drift(database: Database, target: ProjectionTarget) -> None:
    world, _ = await populated(database, target)
    await world.write([None, None], [("likes", 0)])
    await world.update(1, "x", [("likes", 2)])
    await world.delete(3)
    before = await pending(database, target)
    assert (await reconcile(database, target, mode="repair")).mismatches == {}
    assert await pending(database, target) == before


async def test_every_kind_of_drift_in_milvus(database: Database, milvus: MilvusProjection) -> None:
    world, ids = await populated(database, milvus, 7)
    await world.update(1, "changed", None)
    await drain(database, milvus)
    first = (await rows(milvus))[ids[0]]
    await delete_row(milvus, ids[0])
    await edit_row(milvus, ids[1], {"version": 1})
    await edit_row(milvus, ids[2], {"category": "edited by hand"})
    await edit_row(milvus, ids[3], {"projection_hash": "spoiled"})
    await edit_row(milvus, ids[4], {"version": 99})
    await edit_row(milvus, ids[5], {"memory_id": ids[-1] + 1000})
    expected = {"missing": 1, "stale": 1, "hash": 2, "ahead": 1, "orphan": 1}
    assert await audit(database, milvus) == expected
    assert await pending(database, milvus) == 0
    report = await repaired(database, milvus)
    assert report.mismatches == report.repaired == expected
    restored = (await rows(milvus))[ids[0]]
    assert restored == first


async def test_every_kind_of_drift_of_nodes(database: Database, neo4j: Neo4jProjection, backend_id: Any) -> None:
    world, ids = await populated(database, neo4j, 8)
    await world.update(1, "changed", None)
    await drain(database, neo4j)
    before = await graph(neo4j, backend_id)
    one = "MATCH (m:Memory {backend: $backend, memory_id: $id})"
    await cypher(neo4j, f"{one} DETACH DELETE m", id=ids[0])
    await cypher(neo4j, f"{one} SET m.version = 1", id=ids[1])
    await cypher(neo4j, f"{one} SET m.category = 'edited'", id=ids[2])
    await cypher(neo4j, f"{one} REMOVE m.projection_hash", id=ids[3])
    await cypher(neo4j, f"{one} SET m.version = 99", id=ids[4])
    await cypher(neo4j, f"{one} SET m.version = 'text', m.tags = [date()]", id=ids[5])
    await cypher(neo4j, "CREATE (:Memory {backend: $backend, memory_id: $id, version: 1})", id=ids[-1] + 1000)
    await cypher(neo4j, "CREATE (:Memory {backend: $backend, memory_id: $id})", id=ids[-1] + 1001)
    expected = {"missing": 1, "stale": 2, "hash": 2, "ahead": 1, "orphan": 2}
    assert await audit(database, neo4j) == expected
    assert (await repaired(database, neo4j)).repaired == expected
    assert await graph(neo4j, backend_id) == before


async def test_every_kind_of_drift_of_edges(database: Database, neo4j: Neo4jProjection, backend_id: Any) -> None:
    world, ids = await populated(database, neo4j, 9)
    for place in range(8):
        await world.update(place, "x", [("likes", 8)])
    await drain(database, neo4j)
    before = await graph(neo4j, backend_id)
    edge = "MATCH (s:Memory {backend: $backend, memory_id: $id})-[r:RELATES]->(t)"
    other = "MATCH (o:Memory {backend: $backend, memory_id: $other})"
    await cypher(neo4j, f"{edge} DELETE r", id=ids[0])
    await cypher(neo4j, f"{edge} SET r.version = 0", id=ids[1])
    await cypher(neo4j, f"{edge} SET r.relation_hash = 'spoiled'", id=ids[2])
    await cypher(neo4j, f"{edge} SET r.version = 99", id=ids[3])
    await cypher(
        neo4j, f"{edge} {other} CREATE (s)-[n:RELATES]->(o) SET n = properties(r) DELETE r", id=ids[4], other=ids[7]
    )
    await cypher(neo4j, f"{edge} SET r.type = 'hates'", id=ids[5])
    await cypher(neo4j, f"{edge} {other} CREATE (s)-[:RELATES {{type: 'extra'}}]->(o)", id=ids[6], other=ids[0])
    await cypher(neo4j, f"{edge} CREATE (s)-[:RELATES {{type: 'lost'}}]->(:Memory {{backend: 'nobody'}})", id=ids[7])
    expected = {
        "edge_missing": 1,
        "edge_stale": 1,
        "edge_hash": 1,
        "edge_ahead": 1,
        "edge_endpoint": 1,
        "edge_type": 1,
        "edge_orphan": 1,
        "edge_dangling": 1,
    }
    try:
        assert await audit(database, neo4j) == expected
        assert (await repaired(database, neo4j)).repaired == expected
        assert await graph(neo4j, backend_id) == before
    finally:
        await neo4j.neo4j.run("MATCH (m:Memory {backend: 'nobody'}) DETACH DELETE m")


async def test_finding_the_same_drift_again_makes_no_second_repair(
    database: Database, milvus: MilvusProjection
) -> None:
    _, ids = await populated(database, milvus)
    await delete_row(milvus, ids[0])
    assert (await reconcile(database, milvus, mode="repair")).repaired == {"missing": 1}
    second = await reconcile(database, milvus, mode="repair")
    assert (second.mismatches, second.repaired, await pending(database, milvus)) == ({}, {}, 1)


async def test_pages_end_in_the_middle_of_orphans(
    database: Database, target: ProjectionTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With three memories a page, what surrounds the page's borders is compared once and only once."""
    monkeypatch.setattr(scan_module, "PAGE", 3)
    world, ids = await populated(database, target, 12)
    for place in (0, 3, 4, 8, 11):
        await world.delete(place)
    async with database.acquire() as connection:
        await connection.execute(database.sql("DELETE FROM {schema}.memory_outbox"))
    seen: list[Progress] = []
    report = await reconcile(database, target, mode="audit", progress=seen.append)
    assert report.mismatches == {"orphan": 5}
    assert {sample.memory_id for sample in report.samples} == {ids[place] for place in (0, 3, 4, 8, 11)}
    assert [step.scanned for step in seen] == [3, 6, 7]
    assert (await repaired(database, target)).repaired == {"orphan": 5}


async def test_a_flood_of_orphans_stops_the_run_before_it_deletes_anything(
    database: Database, target: ProjectionTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "ORPHAN_FLOOR", 2)
    await populated(database, target, 6)
    async with database.acquire() as connection:
        await connection.execute(database.sql("DELETE FROM {schema}.long_term_memory"))
    stopped = await reconcile(database, target, mode="repair")
    assert (stopped.state, stopped.repaired, await pending(database, target)) == ("failed", {}, 0)
    assert "have no memory in the truth" in (stopped.error or "")
    allowed = await reconcile(database, target, mode="repair", orphan_fraction=1)
    assert allowed.repaired == {"orphan": 6}
    await drain(database, target)
    assert await audit(database, target) == {}


async def test_a_run_can_be_cancelled(
    database: Database, neo4j: Neo4jProjection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_module, "PAGE", 2)
    await populated(database, neo4j, 6)
    signal = Signal()
    report = await reconcile(database, neo4j, mode="audit", signal=signal, progress=lambda step: signal.abort())
    assert (report.state, report.scanned) == ("cancelled", 2)
    async with database.acquire() as connection:
        row = await connection.fetchrow(database.sql("SELECT * FROM {schema}.reconciliation_run"))
    assert (row["state"], row["scanned"], row["finished_at"] is not None) == ("cancelled", 2, True)


async def test_runs_are_recorded(database: Database, milvus: MilvusProjection) -> None:
    _, ids = await populated(database, milvus)
    await delete_row(milvus, ids[0])
    report = await reconcile(database, milvus, mode="repair")
    async with database.acquire() as connection:
        row = await connection.fetchrow(database.sql("SELECT * FROM {schema}.reconciliation_run"))
    assert (row["id"], row["state"], row["target"], row["mode"]) == (report.run_id, "completed", "milvus", "repair")
    assert (row["mismatches"], row["repaired"]) == ('{"missing": 1}', '{"missing": 1}')
    assert str(ids[0]) in row["samples"]


async def test_a_target_that_is_away_fails_the_run(
    database: Database, milvus: MilvusProjection, milvus_settings: MilvusSettings
) -> None:
    await populated(database, milvus)
    gone = MilvusConnection(milvus_settings.model_copy(update={"uri": "http://127.0.0.1:1", "timeout": 2}))
    milvus.milvus, reachable = gone, milvus.milvus
    try:
        with pytest.raises(TargetUnavailable):
            await reconcile(database, milvus, mode="audit")
    finally:
        milvus.milvus = reachable
        await gone.close()
    async with database.acquire() as connection:
        row = await connection.fetchrow(database.sql("SELECT state, error FROM {schema}.reconciliation_run"))
    assert tuple(row) == ("failed", "TargetUnavailable")


async def test_nothing_of_another_backend_is_read_or_repaired(
    database: Database, neo4j: Neo4jProjection, backend_id: Any
) -> None:
    await populated(database, neo4j)
    other = f"{backend_id}-other"
    await neo4j.neo4j.run("CREATE (:Memory {backend: $other, memory_id: 1, version: 5})", {"other": other})
    try:
        assert (await repaired(database, neo4j)).mismatches == {}
        assert set((await graph(neo4j, other))[0]) == {1}
    finally:
        await neo4j.neo4j.run("MATCH (m:Memory {backend: $other}) DETACH DELETE m", {"other": other})


async def test_audits_beside_writers_and_workers_cry_no_wolf(
    database: Database, target: ProjectionTarget, milvus_settings: MilvusSettings, neo4j_settings: Neo4jSettings
) -> None:
    """Memories change, workers project, and every audit in between reports nothing."""
    await target.start()
    world = World(database, target)
    await world.write([None] * 20, [])
    beside: ProjectionTarget = (
        MilvusProjection(database, MilvusConnection(milvus_settings), stored_embeddings(database))
        if isinstance(target, MilvusProjection)
        else Neo4jProjection(database, Neo4jConnection(neo4j_settings))
    )
    stop = Signal()
    worker = asyncio.create_task(OutboxWorker(database, beside, OutboxSettings(batch_size=7)).run(stop))
    done = False

    async def change() -> None:
        place = 0
        while not done:
            place += 1
            await world.update(place, f"c{place}", [("likes", place + 3), ("knows", place * 2)])
            if place % 5 == 0:
                await world.delete(place * 7)
                await world.write([None], [("likes", place)])
            await asyncio.sleep(0.01)

    changing = asyncio.create_task(change())
    try:
        for _ in range(4):
            assert await audit(database, target) == {}
            await asyncio.sleep(0.3)
    finally:
        done = True
        await changing
        while await pending(database, target):  # noqa: ASYNC110 - the database is asked, nobody could set an event
            await asyncio.sleep(0.1)
        stop.abort()
        await worker
    assert await audit(database, target) == {}
