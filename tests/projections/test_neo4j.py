"""The Neo4j target on a real server."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime
from uuid import UUID

import pytest

from memplane.outbox.events import Outcome, Target, Task, Truth, Verdict
from memplane.projections.clients import Neo4jConnection
from memplane.projections.neo4j import Neo4jProjection
from memplane.projections.neo4j_node import digest
from memplane.schema.database import Database
from memplane.settings import Neo4jSettings
from tests.projections.support import edge, graph, truth, with_edges, without
from tests.projections.support import task as any_task

BARE = {"backend", "memory_id"}


def task(state: Truth, **options: object) -> Task:
    return any_task(state, Target.NEO4J, **options)  # type: ignore[arg-type]


def verdicts(outcomes: object) -> list[Verdict]:
    return [outcome.verdict for outcome in outcomes]  # type: ignore[attr-defined]


def known(source: int, target: int, kind: str, version: int) -> tuple[int, str, int, int, str]:
    return source, kind, target, version, edge(source, target, kind, version).relation_hash


async def test_a_live_memory_becomes_a_node_with_all_its_fields(neo4j: Neo4jProjection, backend_id: UUID) -> None:
    full = truth(
        7,
        3,
        importance=0.25,
        category="preference",
        tags=["a", "日本"],
        slot_hint="profile",
        expires_at=datetime(2100, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
    )
    assert verdicts(await neo4j.project([task(full)], timeout=30)) == [Verdict.APPLIED]
    nodes, _ = await graph(neo4j, backend_id)
    assert without(nodes[7], "projection_hash") == {
        "memory_id": 7,
        "backend": str(backend_id),
        "tenant": "acme",
        "user_id": "ann",
        "version": 3,
        "content_hash": full.content_hash,
        "importance": 0.25,
        "category": "preference",
        "tags": ["a", "日本"],
        "slot_hint": "profile",
        "expires_at": 4102542245678901,
    }
    assert digest(nodes[7], (await neo4j.generation()).space) == nodes[7]["projection_hash"]


async def test_the_same_event_twice_changes_nothing(neo4j: Neo4jProjection, backend_id: UUID) -> None:
    batch = [task(truth(1, tags=[])), task(with_edges(truth(2), 1, (1, "likes")))]
    assert verdicts(await neo4j.project(batch, timeout=30)) == [Verdict.APPLIED, Verdict.APPLIED]
    before = await graph(neo4j, backend_id)
    assert verdicts(await neo4j.project(batch, timeout=30)) == [Verdict.UNCHANGED, Verdict.UNCHANGED]
    assert await graph(neo4j, backend_id) == before


async def test_an_old_version_neither_overwrites_nor_deletes_a_newer_one(
    neo4j: Neo4jProjection, backend_id: UUID
) -> None:
    await neo4j.project(
        [task(truth(1, 2)), task(truth(2, 2)), task(with_edges(truth(3, 2), 2, (1, "likes")))], timeout=30
    )
    before = await graph(neo4j, backend_id)
    late = [
        task(truth(1, 1)),
        task(truth(2, 1, live=False)),
        task(with_edges(truth(3, 1), 1, (2, "likes"))),
    ]
    assert verdicts(await neo4j.project(late, timeout=30)) == [Verdict.AHEAD] * 3
    assert await graph(neo4j, backend_id) == before


async def test_a_repair_overwrites_and_deletes_what_is_ahead_of_the_truth(
    neo4j: Neo4jProjection, backend_id: UUID
) -> None:
    await neo4j.project(
        [task(truth(1, 9)), task(truth(2, 9)), task(with_edges(truth(3, 9), 9, (1, "likes")))], timeout=30
    )
    repairs = [
        task(truth(1, 1), repair=True),
        task(truth(2, 0, live=False), repair=True),
        task(with_edges(truth(3, 1), 1, (1, "knows")), repair=True),
    ]
    assert verdicts(await neo4j.project(repairs, timeout=30)) == [Verdict.AHEAD] * 3
    nodes, edges = await graph(neo4j, backend_id)
    assert {number: node.get("version") for number, node in nodes.items()} == {1: 1, 3: None}
    assert edges == {known(3, 1, "knows", 1)}


async def test_the_same_version_with_another_hash_is_a_conflict_that_the_truth_wins(
    neo4j: Neo4jProjection, backend_id: UUID
) -> None:
    await neo4j.project([task(truth(1, category="old", slot_hint="gone"))], timeout=30)
    assert verdicts(await neo4j.project([task(truth(1, category="new"))], timeout=30)) == [Verdict.CONFLICT]
    nodes, _ = await graph(neo4j, backend_id)
    assert (nodes[1]["category"], "slot_hint" in nodes[1]) == ("new", False)


async def test_a_repair_restores_what_a_hand_edited(neo4j: Neo4jProjection, backend_id: UUID) -> None:
    states = [truth(1, category="true"), with_edges(truth(1, category="true"), 1, (2, "likes"))]
    await neo4j.project([task(states[0])], timeout=30)
    await neo4j.project([task(states[1])], timeout=30)
    before = await graph(neo4j, backend_id)
    await neo4j.neo4j.run(
        """MATCH (m:Memory {backend: $backend, memory_id: 1})-[r:RELATES]->()
        SET m.category = 'edited', m.extra = 1, r.type = 'hates'""",
        {"backend": str(backend_id)},
    )
    for state in states:
        await neo4j.project([task(state, repair=True)], timeout=30)
    assert await graph(neo4j, backend_id) == before


async def test_edges_become_exactly_the_live_set(neo4j: Neo4jProjection, backend_id: UUID) -> None:
    for number in (1, 2, 3):
        await neo4j.project([task(truth(number))], timeout=30)
    await neo4j.project(
        [task(with_edges(truth(1), 1, (2, "likes"), (3, "likes"), (3, "knows"), (1, "self")))], timeout=30
    )
    assert (await graph(neo4j, backend_id))[1] == {
        known(1, 2, "likes", 1),
        known(1, 3, "likes", 1),
        known(1, 3, "knows", 1),
        known(1, 1, "self", 1),
    }
    await neo4j.project([task(with_edges(truth(1), 2, (3, "likes")))], timeout=30)
    assert (await graph(neo4j, backend_id))[1] == {known(1, 3, "likes", 2)}


async def test_a_missing_end_is_a_bare_node_that_goes_with_its_last_edge(
    neo4j: Neo4jProjection, backend_id: UUID
) -> None:
    await neo4j.project(
        [task(with_edges(truth(1), 1, (2, "likes"))), task(with_edges(truth(3), 1, (2, "likes")))], timeout=30
    )
    nodes, _ = await graph(neo4j, backend_id)
    assert set(nodes[2]) == BARE
    await neo4j.project([task(with_edges(truth(1), 2))], timeout=30)
    assert set((await graph(neo4j, backend_id))[0]) == {2, 3}
    await neo4j.project([task(with_edges(truth(3), 2))], timeout=30)
    assert await graph(neo4j, backend_id) == ({}, set())


async def test_a_deleted_node_stays_bare_until_the_sources_let_go(neo4j: Neo4jProjection, backend_id: UUID) -> None:
    await neo4j.project([task(truth(1)), task(truth(2, category="secret"))], timeout=30)
    await neo4j.project([task(with_edges(truth(1), 1, (2, "likes")))], timeout=30)
    await neo4j.project([task(truth(2, 2, live=False))], timeout=30)
    nodes, edges = await graph(neo4j, backend_id)
    assert (set(nodes[2]), edges) == (BARE, {known(1, 2, "likes", 1)})
    await neo4j.project([task(with_edges(truth(1), 2))], timeout=30)
    nodes, edges = await graph(neo4j, backend_id)
    assert (set(nodes), edges) == ({1}, set())


async def test_relations_made_by_hand_do_not_hold_a_deleted_node(neo4j: Neo4jProjection, backend_id: UUID) -> None:
    await neo4j.project([task(truth(1)), task(truth(2))], timeout=30)
    await neo4j.neo4j.run(
        """MATCH (a:Memory {backend: $backend, memory_id: 1}), (b:Memory {backend: $backend, memory_id: 2})
        CREATE (a)-[:ADMIRES]->(b)""",
        {"backend": str(backend_id)},
    )
    await neo4j.project([task(truth(2, 2, live=False))], timeout=30)
    assert set((await graph(neo4j, backend_id))[0]) == {1}


async def test_another_backends_nodes_are_never_touched(neo4j: Neo4jProjection, backend_id: UUID) -> None:
    other = f"{backend_id}-other"
    await neo4j.neo4j.run("CREATE (:Memory {backend: $backend, memory_id: 1, version: 5})", {"backend": other})
    try:
        await neo4j.project([task(truth(1, 9))], timeout=30)
        await neo4j.project([task(truth(1, 10, live=False))], timeout=30)
        assert await graph(neo4j, other) == ({1: {"backend": other, "memory_id": 1, "version": 5}}, set())
    finally:
        await neo4j.neo4j.run("MATCH (m:Memory {backend: $backend}) DETACH DELETE m", {"backend": other})


async def test_settled_tells_whether_exactly_the_truth_is_held(neo4j: Neo4jProjection) -> None:
    await neo4j.project([task(truth(1)), task(truth(2)), task(with_edges(truth(3), 1, (1, "likes")))], timeout=30)
    asked = [
        task(truth(1)),
        task(truth(2, 2)),
        task(truth(2, 2, live=False)),
        task(truth(4, 2, live=False)),
        task(with_edges(truth(3), 1, (1, "likes"))),
        task(with_edges(truth(3), 2, (2, "likes"))),
        task(with_edges(truth(5), 1)),
        task(with_edges(truth(6), 1, (1, "likes"))),
    ]
    assert list(await neo4j.settled(asked, timeout=30)) == [True, False, False, True, True, False, True, False]


async def test_forty_writers_of_one_node_end_with_the_newest_version(
    neo4j: Neo4jProjection, neo4j_settings: Neo4jSettings, database: Database, backend_id: UUID
) -> None:
    """Version condition and write are one step: without the node's lock some older version would come last."""
    await neo4j.start()
    others = [Neo4jProjection(database, Neo4jConnection(neo4j_settings)) for _ in range(3)]
    writers = [neo4j, *others]
    try:
        for first in (1, 101, 201):
            versions = list(range(first, first + 40))
            random.Random(first).shuffle(versions)
            await asyncio.gather(
                *(
                    writers[number % 4].project([task(truth(1, version))], timeout=60)
                    for number, version in enumerate(versions)
                )
            )
            nodes, _ = await graph(neo4j, backend_id)
            assert nodes[1]["version"] == first + 39
    finally:
        for other in others:
            await other.close()


async def test_sources_that_share_bare_ends_race_without_loss(neo4j: Neo4jProjection, backend_id: UUID) -> None:
    """One source drops its edge to a bare node while another one adds its own: no edge is lost, no node left over."""

    async def swing(source: int) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for version in range(1, 16):
            ends = [(99, "likes"), (98, "likes")] if version % 2 else []
            outcomes += await neo4j.project([task(with_edges(truth(source), version, *ends))], timeout=60)
        return outcomes

    await asyncio.gather(*(swing(source) for source in range(1, 7)))
    nodes, edges = await graph(neo4j, backend_id)
    assert edges == {known(source, end, "likes", 15) for source in range(1, 7) for end in (98, 99)}
    assert set(nodes) == {*range(1, 7), 98, 99}
    await asyncio.gather(*(neo4j.project([task(with_edges(truth(source), 16))], timeout=60) for source in range(1, 7)))
    assert await graph(neo4j, backend_id) == ({}, set())


@pytest.mark.parametrize("count", [1000])
async def test_a_large_batch(neo4j: Neo4jProjection, backend_id: UUID, count: int) -> None:
    batch = [task(truth(number)) for number in range(1, count + 1)]
    assert set(verdicts(await neo4j.project(batch, timeout=60))) == {Verdict.APPLIED}
    assert len((await graph(neo4j, backend_id))[0]) == count
