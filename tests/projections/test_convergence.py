"""Any order, repetition and delay of a history's events ends in the state of the truth (design section 6)."""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memplane.outbox.events import ProjectionTarget
from memplane.projections.milvus import MilvusProjection
from memplane.projections.neo4j import Neo4jProjection
from memplane.schema.database import Database
from tests.projections.support import graph, rows
from tests.projections.world import World

PROFILE: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    "print_blob": True,
}

places = st.integers(0, 5)
relations = st.lists(st.tuples(st.sampled_from(["likes", "knows"]), places), max_size=3)
keys = st.lists(st.sampled_from([None, "a", "b"]), min_size=1, max_size=2, unique=True)
steps = st.one_of(
    st.tuples(st.just("write"), keys, relations),
    st.tuples(st.just("update"), places, st.sampled_from(["x", "y"]), relations | st.none()),
    st.tuples(st.just("delete"), places),
    st.tuples(st.just("capture")),
    st.tuples(st.just("late")),
    st.tuples(st.just("deliver")),
)
histories = st.lists(steps, min_size=2, max_size=10).map(lambda tail: [("write", [None, "a"], []), *tail])


async def live_through(world: World, history: list[tuple[Any, ...]], chance: random.Random) -> None:
    """Carry out the history; then what is late comes late, and at last every event is delivered."""
    for name, *arguments in history:
        if name == "capture":
            await world.capture(chance)
        elif name == "deliver":
            await world.shuffled(chance, 0.5)
        else:
            await getattr(world, name)(*arguments)
    await world.shuffled(chance, 0.5)
    await world.late()
    await world.shuffled(chance, 1.0)


async def check_milvus(world: World, projection: MilvusProjection) -> None:
    live = await world.live()
    held = {number: row for number, row in (await rows(projection)).items() if row["user_id"] == world.user}
    assert {number: (row["version"], row["content_hash"], row["category"]) for number, row in held.items()} == {
        number: (row["version"], row["content_hash"], row["category"] or "") for number, row in live.items()
    }


async def check_neo4j(world: World, projection: Neo4jProjection, backend_id: UUID, first: int) -> None:
    live, edges = await world.live(), await world.edges()
    nodes, held_edges = await graph(projection, backend_id)
    held = {number: node for number, node in nodes.items() if number >= first}
    bare = {end for source, _, target, _, _ in edges for end in (source, target)} - set(live)
    assert {
        number: (node.get("version"), node.get("content_hash"), node.get("category")) for number, node in held.items()
    } == {
        **{number: (row["version"], row["content_hash"], row["category"]) for number, row in live.items()},
        **dict.fromkeys(bare, (None, None, None)),
    }
    assert {edge for edge in held_edges if edge[0] >= first} == edges


async def settled(world: World, target: ProjectionTarget) -> bool:
    return all(await target.settled(await world.tasks(await world.events()), timeout=60))


@settings(max_examples=12, **PROFILE)
@given(history=histories, chance=st.randoms(use_true_random=False))
async def test_milvus_ends_in_the_state_of_the_truth(
    database: Database, milvus: MilvusProjection, history: list[tuple[Any, ...]], chance: random.Random
) -> None:
    world = World(database, milvus)
    await live_through(world, history, chance)
    await check_milvus(world, milvus)
    assert await settled(world, milvus)


@settings(max_examples=40, **PROFILE)
@given(history=histories, chance=st.randoms(use_true_random=False))
async def test_neo4j_ends_in_the_state_of_the_truth(
    database: Database,
    neo4j: Neo4jProjection,
    backend_id: UUID,
    history: list[tuple[Any, ...]],
    chance: random.Random,
) -> None:
    world = World(database, neo4j)
    await live_through(world, history, chance)
    first = min(int(number) for number in world.ids)
    await check_neo4j(world, neo4j, backend_id, first)
    assert await settled(world, neo4j)
