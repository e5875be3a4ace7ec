"""Nodes expected to be new are merged without a read, and right all the same when they are not (decision 0023)."""

from __future__ import annotations

import asyncio
import random
from uuid import UUID

from memplane.outbox.events import Target, Truth, Verdict
from memplane.projections.neo4j import Neo4jProjection
from memplane.projections.neo4j_node import FIELDS, Node, columns, digest, node_of
from tests.projections.support import graph, truth, with_edges
from tests.projections.support import task as any_task


async def project(neo4j: Neo4jProjection, *states: Truth) -> list[Verdict]:
    outcomes = await neo4j.project([any_task(state, Target.NEO4J) for state in states], timeout=30)
    return [outcome.verdict for outcome in outcomes]


async def test_a_batch_of_which_some_were_there_tells_which(neo4j: Neo4jProjection, backend_id: UUID) -> None:
    await project(neo4j, truth(2), truth(4, category="old"), truth(5, 2))
    states = [truth(1), truth(2), truth(3, 2), truth(4, category="new"), truth(5, 1), truth(6)]
    assert await project(neo4j, *states) == [
        Verdict.APPLIED,
        Verdict.UNCHANGED,
        Verdict.APPLIED,
        Verdict.CONFLICT,
        Verdict.AHEAD,
        Verdict.APPLIED,
    ]
    nodes, _ = await graph(neo4j, backend_id)
    assert {number: node["version"] for number, node in nodes.items()} == {1: 1, 2: 1, 3: 2, 4: 1, 5: 2, 6: 1}
    assert nodes[4]["category"] == "new"


async def test_a_bare_node_becomes_whole_and_keeps_its_edges(neo4j: Neo4jProjection, backend_id: UUID) -> None:
    await project(neo4j, with_edges(truth(1), 1, (2, "likes")))
    assert await project(neo4j, truth(1, tags=["a"]), truth(2), truth(3)) == [Verdict.APPLIED] * 3
    nodes, edges = await graph(neo4j, backend_id)
    assert (nodes[1]["tags"], nodes[1]["edges_version"], len(edges)) == (["a"], 1, 1)
    assert "edges_version" not in nodes[3]


async def test_columns_of_equal_values_and_others_give_each_node_its_own(
    neo4j: Neo4jProjection, backend_id: UUID
) -> None:
    states = [
        truth(number, 1, importance=value, category="same", tags=tags, slot_hint=hint)
        for number, (value, tags, hint) in enumerate(
            [(0.0, ["x"], None), (-0.0, ["x"], "a"), (0.5, ["x"], None), (None, ["x"], "b")], start=1
        )
    ]
    for attempt in (states, [truth(one.memory_id, 2, tags=[], importance=0.0) for one in states]):
        assert await project(neo4j, *attempt) == [Verdict.APPLIED] * 4
        nodes, _ = await graph(neo4j, backend_id)
        space = (await neo4j.generation()).space
        for state in attempt:
            held = nodes[state.memory_id]
            assert digest(held, space) == held["projection_hash"]
            assert held == {
                name: value
                for name, value in zip(FIELDS, node_of(state, await neo4j.generation()), strict=True)
                if value is not None
            }


async def test_workers_that_expect_the_same_nodes_to_be_new_end_in_the_newest(
    neo4j: Neo4jProjection, backend_id: UUID
) -> None:
    chance = random.Random(5)
    for round_ in range(5):
        numbers = range(100 * round_, 100 * round_ + 30)
        batches = [[truth(number, version) for number in numbers] for version in (1, 1, 2)]
        chance.shuffle(batches)
        results = await asyncio.gather(*(project(neo4j, *batch) for batch in batches))
        assert sorted(verdict for verdicts in results for verdict in verdicts).count(Verdict.CONFLICT) == 0
        nodes, _ = await graph(neo4j, backend_id)
        assert {nodes[number]["version"] for number in numbers} == {2}


def test_a_column_of_equal_values_travels_once_but_floats_do_not() -> None:
    first: Node = (1, "b", "t", "u", 1, "c", 0.0, None, ["x"], "s", 5, "h1")
    second: Node = (2, "b", "t", "u", 1, "c", -0.0, None, ["x"], None, 5, "h2")
    assert columns([first, second]) == {
        "memory_id": [1, 2],
        "tenant": ["t"],
        "user_id": ["u"],
        "version": [1],
        "content_hash": ["c"],
        "importance": [0.0, -0.0],
        "category": [None],
        "tags": [["x"]],
        "slot_hint": ["s", None],
        "expires_at": [5],
        "projection_hash": ["h1", "h2"],
    }
    assert str(columns([first, second])["importance"]) == "[0.0, -0.0]"
