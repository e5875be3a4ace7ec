"""Milvus or Neo4j goes away in the middle of the work and comes back (seed `002` sections 12 and 15.2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest

from memplane.outbox.events import ProjectionTarget, Target
from memplane.outbox.worker import OutboxWorker
from memplane.projections.clients import MilvusConnection, Neo4jConnection
from memplane.projections.milvus import MilvusProjection
from memplane.projections.neo4j import Neo4jProjection
from memplane.settings import MilvusSettings, Neo4jSettings
from memplane.signal import Signal
from tests.crash.proxy import Proxy, proxied
from tests.crash.support import OUTBOX, Deployment
from tests.projections.support import stored_embeddings
from tests.projections.world import World
from tests.reconcile.support import pending

TARGETS = [Target.MILVUS, Target.NEO4J]
SETTINGS = OUTBOX.model_copy(update={"batch_size": 5, "call_timeout": 2.0, "lease_seconds": 6, "renew_seconds": 1})


@asynccontextmanager
async def working(deployment: Deployment, projection: ProjectionTarget) -> AsyncIterator[asyncio.Task[None]]:
    """One worker, from before the outage until after it."""
    stop = Signal()
    worker = asyncio.create_task(OutboxWorker(deployment.database, projection, SETTINGS).run(stop))
    try:
        yield worker
    finally:
        stop.abort()
        await worker


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 90) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110 - only the database knows
            await asyncio.sleep(0.1)


def behind(
    proxy: Proxy, target: Target, deployment: Deployment, milvus: MilvusSettings, neo4j: Neo4jSettings
) -> ProjectionTarget:
    """The target as seen through the proxy."""
    if target is Target.MILVUS:
        settings = milvus.model_copy(update={"uri": f"http://127.0.0.1:{proxy.port}", "timeout": 3})
        return MilvusProjection(deployment.database, MilvusConnection(settings), stored_embeddings(deployment.database))
    graph = neo4j.model_copy(update={"uri": f"bolt://127.0.0.1:{proxy.port}", "timeout": 3})
    return Neo4jProjection(deployment.database, Neo4jConnection(graph))


def address(target: Target, milvus: MilvusSettings, neo4j: Neo4jSettings) -> tuple[str, int]:
    parts = urlsplit((milvus.uri if target is Target.MILVUS else neo4j.uri) or "")
    return parts.hostname or "", parts.port or 0


@pytest.mark.timeout(240)
@pytest.mark.parametrize("how", ["frozen", "cut"])
@pytest.mark.parametrize("target", TARGETS)
async def test_a_target_that_goes_away_is_waited_for(
    deployment: Deployment, milvus_settings: MilvusSettings, neo4j_settings: Neo4jSettings, target: Target, how: str
) -> None:
    """Writes go on, no attempt is charged, and the same worker catches up by itself."""
    async with proxied(*address(target, milvus_settings, neo4j_settings)) as proxy:
        projection = behind(proxy, target, deployment, milvus_settings, neo4j_settings)
        world = World(deployment.database, projection)
        async with working(deployment, projection) as worker:
            await world.write([None] * 6, [])
            await until(lambda: nothing_pending(deployment, projection))
            writes = asyncio.create_task(many_changes(world))
            await asyncio.sleep(0.2)
            proxy.freeze() if how == "frozen" else await proxy.cut()
            await writes
            await asyncio.sleep(6)
            assert await pending(deployment.database, projection) > 0
            assert not worker.done()
            proxy.thaw() if how == "frozen" else await proxy.open()
            await until(lambda: nothing_pending(deployment, projection))
        assert await deployment.dead() == 0
        assert await most_attempts(deployment, target) <= 1
    assert await deployment.difference(target) == {}


async def many_changes(world: World) -> None:
    for number in range(20):
        await world.update(number, f"c{number}", [("likes", number + 1)])
        if number % 6 == 5:
            await world.delete(number + 2)
        await asyncio.sleep(0.02)


async def nothing_pending(deployment: Deployment, projection: ProjectionTarget) -> bool:
    return await pending(deployment.database, projection) == 0


async def most_attempts(deployment: Deployment, target: Target) -> int:
    async with deployment.database.acquire() as connection:
        return int(
            await connection.fetchval(
                deployment.database.sql("SELECT max(attempts) FROM {schema}.memory_outbox WHERE target = $1"),
                target.value,
            )
        )
