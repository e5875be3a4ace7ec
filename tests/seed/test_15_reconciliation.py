"""Seed `002` section 15.3: each test is one of its sentences, on real targets, repaired by the events' own workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.projections.support import graph, rows
from tests.reconcile.support import cypher, delete_row, drain, edit_row, insert_row, pending, populated

from memplane.outbox.events import ProjectionTarget
from memplane.projections.milvus import MilvusProjection
from memplane.projections.neo4j import Neo4jProjection
from memplane.reconcile import Report, reconcile
from memplane.schema.database import Database

ONE = "MATCH (m:Memory {backend: $backend, memory_id: $id})"


async def contents(target: ProjectionTarget) -> Any:
    """Everything that the target holds."""
    if isinstance(target, MilvusProjection):
        return await rows(target)
    assert isinstance(target, Neo4jProjection)
    return await graph(target, (await target.generation()).backend)


async def lose(target: ProjectionTarget, memory_ids: Sequence[int]) -> None:
    """Delete objects by hand."""
    for memory_id in memory_ids:
        if isinstance(target, MilvusProjection):
            await delete_row(target, memory_id)
        else:
            assert isinstance(target, Neo4jProjection)
            await cypher(target, f"{ONE} DETACH DELETE m", id=memory_id)


async def repaired(database: Database, target: ProjectionTarget) -> Report:
    """Audit, repair, work the events off; in the end an audit finds nothing."""
    audit = await reconcile(database, target, mode="audit")
    assert audit.repaired == {}
    report = await reconcile(database, target, mode="repair")
    assert report.mismatches == audit.mismatches == report.repaired
    await drain(database, target)
    assert (await reconcile(database, target, mode="audit")).clean
    return report


async def test_missing_objects_are_found_and_repaired(database: Database, target: ProjectionTarget) -> None:
    _, ids = await populated(database, target)
    before = await contents(target)
    await lose(target, [ids[0], ids[3]])
    assert (await repaired(database, target)).mismatches == {"missing": 2}
    assert await contents(target) == before


async def test_orphans_are_found_and_deleted(database: Database, target: ProjectionTarget) -> None:
    """One whose memory is deleted, and one whose memory never was."""
    world, ids = await populated(database, target)
    stranger = ids[-1] + 1000
    await target.start()
    if isinstance(target, MilvusProjection):
        row = await insert_row(target, ids[0])
        await world.delete(0)
        await drain(database, target)
        before = await contents(target)
        await insert_row(target, ids[0], row)
        await insert_row(target, stranger, {**row, "memory_id": stranger})
    else:
        assert isinstance(target, Neo4jProjection)
        await world.delete(0)
        await drain(database, target)
        before = await contents(target)
        for memory_id in (ids[0], stranger):
            await cypher(target, "CREATE (:Memory {backend: $backend, memory_id: $id, version: 1})", id=memory_id)
    assert (await repaired(database, target)).mismatches == {"orphan": 2}
    assert await contents(target) == before


async def test_stale_objects_are_repaired_by_version_and_by_hash(database: Database, target: ProjectionTarget) -> None:
    world, ids = await populated(database, target)
    await world.update(0, "changed", None)
    await drain(database, target)
    before = await contents(target)
    if isinstance(target, MilvusProjection):
        await edit_row(target, ids[0], {"version": 1})
        await edit_row(target, ids[1], {"content_hash": "another"})
    else:
        assert isinstance(target, Neo4jProjection)
        await cypher(target, f"{ONE} SET m.version = 1", id=ids[0])
        await cypher(target, f"{ONE} SET m.content_hash = 'another'", id=ids[1])
    assert (await repaired(database, target)).mismatches == {"stale": 1, "hash": 1}
    assert await contents(target) == before


async def test_missing_and_dangling_edges_of_the_graph_are_found_and_repaired(
    database: Database, neo4j: Neo4jProjection
) -> None:
    world, ids = await populated(database, neo4j)
    await world.update(0, "x", [("likes", 3)])
    await world.update(1, "x", [("likes", 3)])
    await drain(database, neo4j)
    before = await contents(neo4j)
    await cypher(neo4j, f"{ONE}-[r:RELATES]->() DELETE r", id=ids[0])
    lost = "CREATE (m)-[:RELATES {backend: $backend, type: 'lost'}]->(:Memory {backend: $backend, memory_id: $other})"
    await cypher(neo4j, f"{ONE} {lost}", id=ids[1], other=ids[-1] + 1000)
    assert (await repaired(database, neo4j)).mismatches == {"edge_missing": 1, "edge_dangling": 1}
    assert await contents(neo4j) == before


async def test_scanning_the_same_difference_again_makes_no_endless_repairs(
    database: Database, target: ProjectionTarget
) -> None:
    """While a repair is unfinished there is no second one; if repairing does not help, there are three in a day."""
    _, ids = await populated(database, target)
    made = 0
    for _ in range(6):
        await lose(target, [ids[0]])
        for _ in range(3):
            made += sum((await reconcile(database, target, mode="repair")).repaired.values())
            assert await pending(database, target) <= 1
        await drain(database, target)
    assert made == 3
    await lose(target, [ids[0]])
    assert (await reconcile(database, target, mode="repair")).mismatches == {"repair_ineffective": 1}
