"""Working off events, and spoiling what a target holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memplane.outbox.claim import claim, complete
from memplane.outbox.events import ProjectionTarget, Target, Task
from memplane.outbox.truth import read_truths
from memplane.projections.milvus import MilvusProjection
from memplane.projections.neo4j import Neo4jProjection
from memplane.schema.database import Database
from tests.projections.support import rows
from tests.projections.world import World

EVERYTHING = {Target.MILVUS, Target.NEO4J}


async def drain(database: Database, target: ProjectionTarget) -> int:
    """Work off every claimable event, as a worker would; returns how many there were."""
    done = 0
    while events := await claim(database, target.name, worker="test", limit=500, lease_seconds=60):
        truths = await read_truths(database, events, target.needs)
        await target.project([Task(event, truths[event.id]) for event in events], timeout=60)
        await complete(database, events)
        done += len(events)
    return done


async def pending(database: Database, target: ProjectionTarget) -> int:
    """Events of the target that are not finished."""
    async with database.acquire() as connection:
        return int(
            await connection.fetchval(
                database.sql(
                    "SELECT count(*) FROM {schema}.memory_outbox"
                    " WHERE target = $1 AND status IN ('pending', 'processing')"
                ),
                target.name.value,
            )
        )


async def edit_row(projection: MilvusProjection, memory_id: int, changes: Mapping[str, Any]) -> None:
    """Edit a row in Milvus by hand; `projection_hash` stays as it is unless it is among the changes."""
    row = (await rows(projection))[memory_id] | dict(changes)
    await projection.milvus.call("upsert", (await projection.generation()).collection, [row])


async def insert_row(
    projection: MilvusProjection, memory_id: int, row: Mapping[str, Any] | None = None
) -> Mapping[str, Any]:
    """Put a row into Milvus by hand, by default the one that is there; returns it."""
    found = (await rows(projection))[memory_id] if row is None else row
    await projection.milvus.call("upsert", (await projection.generation()).collection, [dict(found)])
    return found


async def delete_row(projection: MilvusProjection, memory_id: int) -> None:
    await projection.milvus.call("delete", (await projection.generation()).collection, ids=[memory_id])


async def cypher(projection: Neo4jProjection, query: str, **parameters: Any) -> None:
    """Edit the graph by hand; `$backend` is the backend's id."""
    backend = (await projection.generation()).backend
    await projection.neo4j.run(query, {"backend": backend, **parameters})


async def populated(database: Database, target: ProjectionTarget, count: int = 5) -> tuple[World, list[int]]:
    """A world of `count` memories that are all projected."""
    world = World(database, target)
    await world.write([None] * count, [])
    await drain(database, target)
    return world, [int(number) for number in world.ids]
