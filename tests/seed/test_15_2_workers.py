"""Seed `002` section 15.2: each test is one of its sentences, on real targets."""

from __future__ import annotations

from typing import Any

import pytest
from tests.crash.proxy import proxied
from tests.crash.support import Deployment
from tests.crash.test_outage import address, behind, many_changes, nothing_pending, until, working
from tests.projections.support import rows, task, truth
from tests.projections.world import World
from tests.reconcile.support import pending

from memplane.outbox.claim import claim
from memplane.outbox.events import ProjectionTarget, Target, Verdict
from memplane.outbox.probes import Point
from memplane.projections.milvus import MilvusProjection
from memplane.settings import MilvusSettings, Neo4jSettings

TARGETS = [Target.MILVUS, Target.NEO4J]


async def held(target: ProjectionTarget) -> dict[int, dict[str, Any]]:
    """Everything that the target holds, by memory id."""
    if isinstance(target, MilvusProjection):
        return await rows(target)
    backend = (await target.generation()).backend  # type: ignore[attr-defined]
    found = await target.neo4j.run(  # type: ignore[attr-defined]
        "MATCH (m:Memory {backend: $backend}) RETURN properties(m) AS m", {"backend": backend}
    )
    return {record["m"]["memory_id"]: record["m"] for record in found}


@pytest.fixture
async def started(target: ProjectionTarget) -> ProjectionTarget:
    await target.start()
    return target


async def test_the_same_event_executed_twice_leaves_the_target_unchanged(started: ProjectionTarget) -> None:
    once = [task(truth(1, 3), started.name), task(truth(2), started.name)]
    await started.project(once, timeout=30)
    before = await held(started)
    outcomes = await started.project(once, timeout=30)
    assert [outcome.verdict for outcome in outcomes] == [Verdict.UNCHANGED, Verdict.UNCHANGED]
    assert await held(started) == before
    assert set(before) == {1, 2}


async def test_when_v2_arrives_before_v1_v2_stays(started: ProjectionTarget) -> None:
    await started.project([task(truth(1, 2), started.name)], timeout=30)
    before = await held(started)
    await started.project([task(truth(1, 1), started.name)], timeout=30)
    assert await held(started) == before
    assert before[1]["version"] == 2


async def test_a_delete_of_v1_after_an_upsert_of_v2_deletes_nothing(started: ProjectionTarget) -> None:
    await started.project([task(truth(1, 2), started.name)], timeout=30)
    before = await held(started)
    await started.project([task(truth(1, 1, live=False), started.name)], timeout=30)
    assert await held(started) == before


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", TARGETS)
async def test_a_call_that_succeeded_and_was_not_acknowledged_is_safely_repeated(
    deployment: Deployment, milvus: MilvusProjection, name: Target
) -> None:
    """The worker dies between its call and the acknowledgement; then others change the same memories."""
    world = World(deployment.database, milvus)
    await world.write([None] * 4, [])
    await deployment.killed({"role": "worker", "target": name, "point": Point.BEFORE_ACKNOWLEDGEMENT, "times": 1})
    await world.update(0, "changed", None)
    await world.delete(1)
    await deployment.work_off(name)
    assert await deployment.difference(name) == {}
    assert await deployment.dead() == 0


@pytest.mark.timeout(240)
async def test_the_processing_events_of_a_crashed_worker_are_claimed_again_when_their_lease_is_over(
    deployment: Deployment, milvus: MilvusProjection
) -> None:
    world = World(deployment.database, milvus)
    await world.write([None] * 4, [])
    await deployment.killed({"role": "worker", "target": Target.MILVUS, "point": Point.BEFORE_CALL, "times": 1})
    async with deployment.database.acquire() as connection:
        left = await connection.fetchval(
            deployment.database.sql(
                "SELECT count(*) FROM {schema}.memory_outbox WHERE target = 'milvus' AND status = 'processing'"
            )
        )
    assert left > 0
    free = await claim(deployment.database, Target.MILVUS, worker="early", limit=100, lease_seconds=1)
    assert len(free) == 4 - left, "nobody takes a lease that holds"
    await deployment.work_off(Target.MILVUS)
    assert await deployment.difference(Target.MILVUS) == {}


@pytest.mark.timeout(240)
@pytest.mark.parametrize("away", TARGETS)
async def test_while_one_target_fails_the_other_goes_on(
    deployment: Deployment, milvus_settings: MilvusSettings, neo4j_settings: Neo4jSettings, away: Target
) -> None:
    other = Target.NEO4J if away is Target.MILVUS else Target.MILVUS
    async with proxied(*address(away, milvus_settings, neo4j_settings)) as proxy:
        blocked = behind(proxy, away, deployment, milvus_settings, neo4j_settings)
        free = deployment.projection(other)
        await blocked.start()
        proxy.freeze()
        async with working(deployment, blocked), working(deployment, free):
            world = World(deployment.database, free)
            await world.write([None] * 6, [])
            await many_changes(world)
            await until(lambda: nothing_pending(deployment, free))
            assert await pending(deployment.database, blocked) > 0
            proxy.thaw()
            await until(lambda: nothing_pending(deployment, blocked))
    for name in TARGETS:
        assert await deployment.difference(name) == {}
