"""Shadow mode on real Milvus and Neo4j: computes, compares, counts, writes nothing; going Live repairs all of it.

Source: seed `002` section 14, stage three; design section 6.9.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from memplane.api.connections import Connections, connect
from memplane.api.going_live import GoingLive
from memplane.contracts import Scope
from memplane.outbox.events import Target
from memplane.outbox.metrics import Metrics
from memplane.outbox.shadow import Shadowed, read_shadowed
from memplane.outbox.worker import OutboxWorker
from memplane.plugins.postgres.delete import delete
from memplane.plugins.postgres.update import update
from memplane.plugins.postgres.write import write
from memplane.plugins.postgres.writing import Writing
from memplane.projections.generation import read_generation
from memplane.reconcile import reconcile
from memplane.settings import MilvusSettings, Neo4jSettings, PostgresSettings, Settings
from memplane.signal import Signal
from tests.http.world import drop
from tests.outbox.world import DictTarget, create, quick, until

SCOPE = Scope("acme", "ann")
BOTH = (Target.MILVUS, Target.NEO4J)
COUNT = """
MATCH (m:Memory {backend: $backend}) OPTIONAL MATCH (m)-[r:RELATES]->()
RETURN count(DISTINCT m) AS m, count(r) AS r
"""
REPLAY = "UPDATE {schema}.memory_outbox SET status = 'pending', processed_at = NULL WHERE aggregate_id = "
RUNS = """
SELECT count(*) FROM {schema}.reconciliation_run WHERE mode = 'repair' AND kind = 'full' AND state = 'completed'
"""


@pytest.fixture
async def live(
    postgres_settings: PostgresSettings, milvus_settings: MilvusSettings, neo4j_settings: Neo4jSettings
) -> AsyncIterator[Connections]:
    settings = Settings(
        postgres=postgres_settings,
        milvus=milvus_settings,
        neo4j=neo4j_settings,
        outbox=quick(call_timeout=5, lease_seconds=12, renew_seconds=3),
    )
    connections = connect(settings, application_name="memplane-tests")
    yield connections
    await connections.close()
    await drop(settings)


class Workers:
    """Workers of one mode for both targets, ended with the block."""

    def __init__(self, connections: Connections, mode: str) -> None:
        self.connections = connections
        self.settings = connections.settings.outbox.model_copy(update={"mode": mode})
        self.registry = CollectorRegistry()
        self.signal = Signal()
        self.tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Workers:
        metrics = Metrics(self.registry)
        for target in BOTH:
            projection = self.connections.projection(target)
            worker = OutboxWorker(self.connections.database, projection, self.settings, metrics=metrics)
            self.tasks.append(asyncio.create_task(worker.run(self.signal)))
        return self

    async def __aexit__(self, *_: object) -> None:
        self.signal.abort()
        await asyncio.gather(*self.tasks)

    def sample(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


async def drained(connections: Connections) -> None:
    async def empty() -> bool:
        async with connections.database.acquire() as connection:
            statement = (
                "SELECT count(*) FROM {schema}.memory_outbox WHERE status <> 'processed' AND target <> 'ltm_cache'"
            )
            return bool(await connection.fetchval(connections.database.sql(statement)) == 0)

    await until(empty, 60)


async def held(connections: Connections) -> dict[str, int]:
    """How many objects of this backend each target holds."""
    milvus, graph = connections.milvus, connections.neo4j
    generation = await read_generation(connections.database, Target.MILVUS)
    assert milvus is not None
    assert graph is not None
    assert generation is not None
    counted = await milvus.call(
        "query", generation.collection, filter="", output_fields=["count(*)"], consistency_level="Strong"
    )
    nodes = (await graph.run(COUNT, {"backend": generation.backend}))[0]
    return {"rows": int(counted[0]["count(*)"]), "nodes": int(nodes["m"]), "edges": int(nodes["r"])}


async def audit(connections: Connections, target: Target) -> dict[str, int]:
    projection = connections.projection(target)
    report = await reconcile(connections.database, projection, mode="audit")
    await projection.close()
    assert report.state == "completed"
    return dict(report.mismatches)


async def value(connections: Connections, statement: str) -> Any:
    async with connections.database.acquire() as connection:
        return await connection.fetchval(connections.database.sql(statement))


def writing(connections: Connections) -> Writing:
    return Writing(connections.database, frozenset(BOTH))


async def write_some(connections: Connections, count: int) -> list[str]:
    memories: list[dict[str, Any]] = [{"content": f"memory {number}"} for number in range(count)]
    made = await write(writing(connections), SCOPE, memories, None)
    ids = [item["id"] for item in made]
    related = {"relations": [{"type": "about", "target": ids[0]}]}
    await update(writing(connections), SCOPE, [{"id": ids[1], "metadata": related}], None)
    return ids


@pytest.mark.slow
async def test_shadow_computes_compares_counts_and_writes_nothing(live: Connections) -> None:
    ids = await write_some(live, 6)
    await delete(writing(live), SCOPE, [ids[5]], None, None)
    async with Workers(live, "Shadow") as workers:
        await drained(live)
    assert await held(live) == {"rows": 0, "nodes": 0, "edges": 0}
    # Five live memories differ (they are not there); the deleted one is equal, being absent on both sides.
    assert await read_shadowed(live.database, Target.MILVUS) == Shadowed(compared=6, different=5)
    assert workers.sample("memory_projection_shadow_total", target="milvus", result="different") == 5
    assert workers.sample("memory_projection_shadow_total", target="milvus", result="equal") == 1
    assert (await read_shadowed(live.database, Target.NEO4J)).different == 6, "five nodes, and the edges of one"
    # Its events end processed and marked …
    ended = "SELECT bool_and(shadow AND status = 'processed') FROM {schema}.memory_outbox WHERE superseded_by IS NULL"
    assert await value(live, ended)
    # … and don't count as projected.
    for target in BOTH:
        assert workers.sample("memory_projection_latency_seconds_count", target=target.value) is None
    assert await audit(live, Target.MILVUS) == {"missing": 5}
    assert await audit(live, Target.NEO4J) == {"missing": 5, "edge_missing": 1}


@pytest.mark.slow
async def test_shadow_tells_equal_from_different_and_leaves_a_wrong_object_alone(live: Connections) -> None:
    ids = await write_some(live, 4)
    async with Workers(live, "Live"):
        await drained(live)
    before = await held(live)
    assert before == {"rows": 4, "nodes": 4, "edges": 1}
    await update(writing(live), SCOPE, [{"id": ids[0], "content": "changed"}], None)
    await delete(writing(live), SCOPE, [ids[1]], None, None)
    # What is asked for again without a change is equal.
    await value(live, REPLAY + ids[2])
    async with Workers(live, "Shadow") as workers:
        await drained(live)
    assert await held(live) == before
    assert workers.sample("memory_projection_shadow_total", target="milvus", result="different") == 2
    assert workers.sample("memory_projection_shadow_total", target="milvus", result="equal") == 1
    assert await audit(live, Target.MILVUS) == {"stale": 1, "orphan": 1}


@pytest.mark.slow
async def test_going_live_starts_a_full_repair(live: Connections) -> None:
    await write_some(live, 6)
    async with Workers(live, "Shadow"):
        await drained(live)
    # The events are pruned long before anybody goes live: what is owed must not depend on them.
    await value(live, "DELETE FROM {schema}.memory_outbox")
    stop = Signal()
    async with Workers(live, "Live"):
        going = [asyncio.create_task(GoingLive(live, target, look_seconds=0.2).run(stop)) for target in BOTH]
        await until(lambda: settled(live), 60)
        await drained(live)
        assert await held(live) == {"rows": 6, "nodes": 6, "edges": 1}
        assert await value(live, RUNS) == 2
        await asyncio.sleep(0.6)
        assert await value(live, RUNS) == 2, "one repair is enough"
        # A worker that still runs in Shadow, in the middle of a rollout, makes another one due.
        async with Workers(live, "Shadow"):
            await write(writing(live), SCOPE, [{"content": f"late {number}"} for number in range(60)], None)
            await drained(live)
        await until(lambda: settled(live), 60)
        await drained(live)
        stop.abort()
        await asyncio.gather(*going)
    assert (await held(live))["rows"] == 66
    for target in BOTH:
        assert await audit(live, target) == {}
    assert GoingLive(live, Target.MILVUS).needed
    shadow = live.settings.model_copy(update={"outbox": live.settings.outbox.model_copy(update={"mode": "Shadow"})})
    other = connect(shadow, application_name="memplane-tests")
    assert not GoingLive(other, Target.MILVUS).needed
    await other.close()


async def settled(connections: Connections) -> bool:
    return not any([(await read_shadowed(connections.database, target)).due for target in BOTH])


async def test_caches_are_told_whatever_the_mode(live: Connections) -> None:
    """A cache has nothing to be compared with, and one that is not told serves what is old."""
    await create(live.database, 3, targets={Target.LTM_CACHE})
    cache, signal = DictTarget(Target.LTM_CACHE), Signal()
    work = asyncio.create_task(OutboxWorker(live.database, cache, quick(mode="Shadow")).run(signal))
    await until(lambda: told(cache))
    signal.abort()
    await work
    assert not await value(live, "SELECT bool_or(shadow) FROM {schema}.memory_outbox")


async def told(cache: DictTarget) -> bool:
    return sum(len(call) for call in cache.calls) == 3
