"""Seed `002` section 15.4: SIGKILL at each of its five points; afterwards every projection equals PostgreSQL."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from tests.crash.support import Deployment
from tests.projections.world import World

from memplane.outbox.events import Target
from memplane.outbox.probes import Point
from memplane.projections.milvus import MilvusProjection

TARGETS = [Target.MILVUS, Target.NEO4J]

ROUNDS = [
    pytest.param(3, id="3 times"),
    pytest.param(20, id="20 times", marks=[pytest.mark.full, pytest.mark.timeout(1800)]),
]


async def changes(world: World, number: int) -> None:
    """A little of everything, so that upserts, deletes, nodes and edges are in flight.

    Only living memories are named, so that nothing is refused: six events are three batches at least, and a child
    that is to die at its third call gets that far.
    """
    base = len(world.ids)
    await world.write([None] * 6, [("likes", base - 1), ("knows", base - 2)] if base else [])
    await world.update(base, f"c{number}", [("likes", base + 2)])
    await world.update(base + 1, "x", None)
    await world.delete(base + 3)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("point", list(Point))
@pytest.mark.parametrize("target", TARGETS)
async def test_killed_before_or_after_the_call_or_before_the_acknowledgement_everything_converges(
    deployment: Deployment, milvus: MilvusProjection, target: Target, point: Point, rounds: int
) -> None:
    world = World(deployment.database, milvus)
    for number in range(rounds):
        await changes(world, number)
        await deployment.killed({"role": "worker", "target": target, "point": point, "times": number % 3 + 1})
        await deployment.work_off(target)
        assert await deployment.difference(target) == {}
    for other in TARGETS:
        await deployment.work_off(other)
        assert await deployment.difference(other) == {}
    assert await deployment.dead() == 0


@pytest.mark.timeout(600)
@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("point", ["before_commit", "after_commit"])
async def test_killed_before_or_after_the_commit_everything_converges(
    deployment: Deployment, point: str, rounds: int
) -> None:
    """Before the commit nothing has happened, after it everything has, events included."""
    for _ in range(rounds):
        user = f"user-{uuid4().hex[:8]}"
        orders: dict[str, Any] = {"role": "writer", "point": point, "user": user, "texts": ["one", "two", "three"]}
        await deployment.killed(orders)
        memories = 0 if point == "before_commit" else 3
        assert await counts(deployment, user) == {"memories": memories, "milvus": memories, "neo4j": memories}
        for target in TARGETS:
            await deployment.work_off(target)
            assert await deployment.difference(target) == {}


async def counts(deployment: Deployment, user: str) -> dict[str, int]:
    """Memories of a user, and memories that have an event, by target."""
    async with deployment.database.acquire() as connection:
        rows = await connection.fetch(
            deployment.database.sql(
                """
                SELECT 'memories' AS what, count(*) FROM {schema}.long_term_memory WHERE user_id = $1
                UNION ALL SELECT 'milvus', count(DISTINCT aggregate_id) FROM {schema}.memory_outbox
                          WHERE user_id = $1 AND target = 'milvus'
                UNION ALL SELECT 'neo4j', count(DISTINCT aggregate_id) FROM {schema}.memory_outbox
                          WHERE user_id = $1 AND target = 'neo4j'
                """
            ),
            user,
        )
    return {row["what"]: row["count"] for row in rows}
