"""Whatever was done to a target by hand or by accident, one repair makes it equal to the truth; twice, too."""

from __future__ import annotations

from typing import Any

from memplane.outbox.events import ProjectionTarget, Target
from memplane.projections.milvus import MilvusProjection
from memplane.projections.milvus_collection import drop_collection
from memplane.projections.neo4j import Neo4jProjection
from memplane.reconcile import Report, last_clean_full_runs, named, reconcile
from memplane.reconcile.listing import list_findings
from memplane.schema.database import Database
from memplane.settings import ReconcileSettings
from tests.projections.support import graph, rows
from tests.reconcile.support import cypher, delete_row, drain, edit_row, insert_row, pending, populated

ALL = "MATCH (m:Memory {backend: $backend}) DETACH DELETE m"
ONE = "MATCH (m:Memory {backend: $backend, memory_id: $id})"


async def converged(database: Database, target: ProjectionTarget) -> Report:
    """One repair, its events worked off, and an audit that finds nothing."""
    report = await reconcile(database, target, mode="repair")
    assert report.state == "completed"
    await drain(database, target)
    audit = await reconcile(database, target, mode="audit")
    assert (audit.clean, audit.unchecked) == (True, 0), audit.samples
    return report


async def test_a_collection_wiped_twice(database: Database, milvus: MilvusProjection) -> None:
    world, ids = await populated(database, milvus)
    await world.delete(4)
    await drain(database, milvus)
    before = await rows(milvus)
    for _ in range(2):
        await milvus.milvus.call("delete", (await milvus.generation()).collection, ids=ids)
        assert await rows(milvus) == {}
        assert (await converged(database, milvus)).repaired == {"missing": 4}
        assert await rows(milvus) == before


async def test_a_collection_dropped(database: Database, milvus: MilvusProjection) -> None:
    await populated(database, milvus)
    before = await rows(milvus)
    await drop_collection(milvus.milvus, await milvus.generation())
    assert (await converged(database, milvus)).repaired == {"missing": 5}
    assert await rows(milvus) == before


async def test_a_graph_wiped_twice(database: Database, neo4j: Neo4jProjection, backend_id: Any) -> None:
    world, _ = await populated(database, neo4j)
    await world.update(0, "x", [("likes", 1), ("knows", 2)])
    await drain(database, neo4j)
    before = await graph(neo4j, backend_id)
    for _ in range(2):
        await cypher(neo4j, ALL)
        assert (await converged(database, neo4j)).repaired == {"missing": 5, "edge_missing": 1}
        assert await graph(neo4j, backend_id) == before


async def test_a_collection_restored_from_an_older_state(database: Database, milvus: MilvusProjection) -> None:
    """What was changed is stale, what was deleted is back, what came later is missing."""
    world, _ = await populated(database, milvus)
    older = await rows(milvus)
    await world.update(0, "changed", None)
    await world.delete(1)
    await world.write([None], [])
    await drain(database, milvus)
    before = await rows(milvus)
    await milvus.milvus.call("delete", (await milvus.generation()).collection, ids=list(before))
    for memory_id, row in older.items():
        await insert_row(milvus, memory_id, row)
    assert (await converged(database, milvus)).repaired == {"missing": 1, "orphan": 1, "stale": 1}
    assert await rows(milvus) == before


async def test_a_graph_restored_from_an_older_state(
    database: Database, neo4j: Neo4jProjection, backend_id: Any
) -> None:
    world, ids = await populated(database, neo4j)
    await world.update(0, "old", [("likes", 1)])
    await drain(database, neo4j)
    nodes, _ = await graph(neo4j, backend_id)
    await world.update(0, "new", [("likes", 2)])
    await world.delete(1)
    await drain(database, neo4j)
    before = await graph(neo4j, backend_id)
    await cypher(neo4j, ALL)
    await neo4j.neo4j.run("UNWIND $nodes AS node CREATE (m:Memory) SET m = node", {"nodes": list(nodes.values())})
    await cypher(
        neo4j,
        f"{ONE} MATCH (o:Memory {{backend: $backend, memory_id: $other}})"
        " CREATE (m)-[:RELATES {backend: $backend, type: 'likes', version: 1, relation_hash: 'old'}]->(o)",
        id=ids[0],
        other=ids[1],
    )
    found = await converged(database, neo4j)
    assert found.mismatches == {"stale": 1, "orphan": 1, "edge_orphan": 1, "edge_missing": 1}
    assert await graph(neo4j, backend_id) == before


EDITS: list[dict[str, Any]] = [
    {"importance": 0.123},
    {"category": "by hand"},
    {"slot_hint": "by hand"},
    {"tags": {"values": ["by hand"]}},
    {"tags": {"values": []}},
    {"metadata": {"by": "hand"}},
    {"expires_at": 1},
    {"tenant": "by hand"},
    {"user_id": "by hand"},
    {"content_hash": "by hand"},
    {"projection_hash": "by hand"},
    {"vector": [1.0] + [0.0] * 7},
    {"vector": [1e-3] * 8, "category": "by hand"},
    {"version": 77},
]


async def test_rows_edited_by_hand(database: Database, milvus: MilvusProjection) -> None:
    """Each field of a row, one memory for each; the last one says that it is newer than the truth."""
    _, ids = await populated(database, milvus, len(EDITS) + 1)
    before = await rows(milvus)
    for memory_id, changes in zip(ids, EDITS, strict=False):
        await edit_row(milvus, memory_id, changes)
    report = await converged(database, milvus)
    assert report.mismatches == report.repaired == {"hash": len(EDITS) - 1, "ahead": 1}
    assert {sample.memory_id for sample in report.samples} == set(ids[:-1])
    assert await rows(milvus) == before


async def test_a_vector_is_only_compared_when_it_may_be(database: Database, milvus: MilvusProjection) -> None:
    _, ids = await populated(database, milvus, 3)
    await edit_row(milvus, ids[0], {"vector": [0.5] * 8})
    settings = ReconcileSettings(vectors=False)
    assert (await reconcile(database, milvus, mode="audit", settings=settings)).clean
    [sample] = (await reconcile(database, milvus, mode="audit")).samples
    assert (sample.memory_id, sample.type) == (ids[0], "hash")
    assert "vector" in sample.detail
    async with database.acquire() as connection:
        await connection.execute(database.sql("DELETE FROM {schema}.memory_embedding"))
    blind = await reconcile(database, milvus, mode="audit")
    assert (blind.clean, blind.unchecked) == (True, 3)


async def test_what_is_anothers_is_told_and_left_alone(database: Database, milvus: MilvusProjection) -> None:
    """A row of another backend stands where one of ours belongs, and one where nothing does."""
    _, ids = await populated(database, milvus, 4)
    await edit_row(milvus, ids[0], {"backend": "another backend"})
    await edit_row(milvus, ids[1], {"memory_id": ids[-1] + 1000, "backend": "another backend"})
    before = await rows(milvus)
    report = await reconcile(database, milvus, mode="repair")
    assert (report.mismatches, report.repaired, await pending(database, milvus)) == ({"foreign": 2}, {}, 0)
    assert "another backend" in report.samples[0].detail
    assert await rows(milvus) == before


async def test_a_relation_of_another_backend_is_told_and_left_alone(
    database: Database, neo4j: Neo4jProjection, backend_id: Any
) -> None:
    world, ids = await populated(database, neo4j, 3)
    await world.update(0, "x", [("likes", 1)])
    await drain(database, neo4j)
    await cypher(
        neo4j,
        f"{ONE} MATCH (o:Memory {{backend: $backend, memory_id: $other}})"
        " CREATE (m)-[:RELATES {backend: 'another', type: 'theirs', version: 1}]->(o)",
        id=ids[0],
        other=ids[2],
    )
    await cypher(neo4j, f"{ONE}-[r:RELATES {{type: 'likes'}}]->() DELETE r", id=ids[0])
    report = await reconcile(database, neo4j, mode="repair")
    assert report.mismatches == {"edge_foreign": 1, "edge_missing": 1}
    await drain(database, neo4j)
    assert (await reconcile(database, neo4j, mode="audit")).mismatches == {"edge_foreign": 1}
    _, edges = await graph(neo4j, backend_id)
    assert {kind for _, kind, *_ in edges} == {"likes", "theirs"}


async def test_a_repair_that_does_not_help_is_told_instead_of_repeated(
    database: Database, milvus: MilvusProjection
) -> None:
    _, ids = await populated(database, milvus, 3)
    for _ in range(3):
        await delete_row(milvus, ids[0])
        assert (await reconcile(database, milvus, mode="repair")).repaired == {"missing": 1}
        await drain(database, milvus)
    await delete_row(milvus, ids[0])
    for mode in ("audit", "repair"):
        report = await reconcile(database, milvus, mode=mode)  # type: ignore[arg-type]
        assert (report.mismatches, report.repaired) == ({"repair_ineffective": 1}, {})
        assert "missing" in report.samples[0].detail
        assert "3 repairs" in report.samples[0].detail
    # The day is over.
    async with database.acquire() as connection:
        await connection.execute(
            database.sql("UPDATE {schema}.memory_outbox SET created_at = created_at - interval '25 hours'")
        )
    assert (await converged(database, milvus)).repaired == {"missing": 1}


async def test_a_run_names_every_dead_memory_that_it_met(database: Database, milvus: MilvusProjection) -> None:
    """Those that differ, and those whose event was still on the way: purge must not take them for gone."""
    world, ids = await populated(database, milvus, 6)
    row = await insert_row(milvus, ids[0])
    await world.delete(0)
    await drain(database, milvus)
    await insert_row(milvus, ids[0], row)
    await delete_row(milvus, ids[1])
    await world.delete(2)
    report = await reconcile(database, milvus, mode="audit")
    assert report.mismatches == {"orphan": 1, "missing": 1}
    found = {one.memory_id: one.type for one in await list_findings(database, report.run_id)}
    assert found == {ids[0]: "orphan", ids[1]: "missing", ids[2]: "unsettled"}
    clean = await last_clean_full_runs(database, [Target.MILVUS, Target.NEO4J])
    assert set(clean) == {Target.MILVUS}
    assert await named(database, clean.values(), ids) == {ids[0], ids[1], ids[2]}
    await drain(database, milvus)
    await converged(database, milvus)
    later = await last_clean_full_runs(database, [Target.MILVUS])
    assert later[Target.MILVUS].started_at > clean[Target.MILVUS].started_at
    assert await named(database, later.values(), ids) == frozenset()
