"""Who owns a collection, and what happens when it is not who the settings say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest
from pymilvus import DataType, MilvusClient

from memplane.errors import IdentityError
from memplane.outbox.events import Target
from memplane.projections.clients import MilvusConnection
from memplane.projections.generation import collection_name, ensure_generation, read_generation
from memplane.projections.milvus import MilvusProjection
from memplane.projections.milvus_collection import drop_collection, ensure_collection
from memplane.schema.database import Database
from memplane.settings import MilvusSettings, PostgresSettings
from tests.projections.support import Letters, rows, stored_embeddings, task, truth


@pytest.fixture
async def connection(milvus_settings: MilvusSettings) -> AsyncIterator[MilvusConnection]:
    made = MilvusConnection(milvus_settings)
    yield made
    await made.close()


async def test_the_name_carries_backend_model_and_dimensions(database: Database, backend_id: UUID) -> None:
    generation = await ensure_generation(database, Target.MILVUS, Letters(8))
    assert generation.collection.startswith(f"memplane_{backend_id.hex[:16]}_")
    assert generation.collection.endswith(f"_8_g{generation.id}")
    names = {
        collection_name(str(backend_id), 1, Letters(8)),
        collection_name(str(backend_id), 1, Letters(9)),
        collection_name(str(backend_id), 2, Letters(8)),
        collection_name(str(backend_id), 1, Letters(8, model="other")),
        collection_name(str(backend_id), 1, Letters(8, revision="2")),
        collection_name("0" * 32, 1, Letters(8)),
    }
    assert len(names) == 6


async def test_it_is_read_as_it_was_made(database: Database) -> None:
    assert await read_generation(database, Target.MILVUS) is None
    made = await ensure_generation(database, Target.MILVUS, Letters())
    assert await read_generation(database, Target.MILVUS) == made
    assert await ensure_generation(database, Target.MILVUS, Letters()) == made


async def test_processes_that_start_together_agree(
    postgres_settings: PostgresSettings, milvus_settings: MilvusSettings
) -> None:
    databases = [Database(postgres_settings) for _ in range(5)]
    projections = [
        MilvusProjection(one, MilvusConnection(milvus_settings), stored_embeddings(one)) for one in databases
    ]
    try:
        await asyncio.gather(*(projection.start() for projection in projections))
        assert len({await projection.generation() for projection in projections}) == 1
        await projections[3].project([task(truth(1))], timeout=30)
        assert set(await rows(projections[0])) == {1}
    finally:
        await drop_collection(projections[0].milvus, await projections[0].generation())
        for projection in projections:
            await projection.close()
        for one in databases:
            await one.close()


@pytest.mark.parametrize("other", [Letters(9), Letters(8, model="other"), Letters(8, revision="2")])
async def test_another_model_or_dimension_is_refused(
    database: Database, milvus: MilvusProjection, milvus_settings: MilvusSettings, other: Letters
) -> None:
    await milvus.project([task(truth(1))], timeout=30)
    changed = MilvusProjection(database, MilvusConnection(milvus_settings), stored_embeddings(database, other))
    try:
        with pytest.raises(IdentityError, match="memplane rebuild milvus"):
            await changed.start()
    finally:
        await changed.close()
    assert set(await rows(milvus)) == {1}


def foreign_schema(*, dimensions: int = 8) -> Any:
    schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field("memory_id", DataType.INT64, is_primary=True)
    schema.add_field("vector", DataType.FLOAT_VECTOR, dim=dimensions)
    return schema


@pytest.mark.parametrize("claims", ["nothing", "another owner", "the right owner with other fields"])
async def test_a_collection_of_that_name_that_is_not_ours_is_left_alone(
    database: Database, connection: MilvusConnection, claims: str
) -> None:
    generation = await ensure_generation(database, Target.MILVUS, Letters())
    properties = dict(generation.properties)
    if claims == "nothing":
        properties = {}
    if claims == "another owner":
        properties["memplane.backend"] = "somebody else"
    await connection.call(
        "create_collection", generation.collection, schema=foreign_schema(), properties=properties or None
    )
    try:
        for attempt in (ensure_collection, drop_collection):
            with pytest.raises(IdentityError, match="left alone"):
                await attempt(connection, generation)
        assert generation.collection in await connection.call("list_collections")
    finally:
        await connection.call("drop_collection", generation.collection)


async def test_a_collection_that_holds_another_backends_rows_is_refused(
    database: Database, milvus: MilvusProjection, milvus_settings: MilvusSettings
) -> None:
    await milvus.project([task(truth(1))], timeout=30)
    generation = await milvus.generation()
    foreign = (await rows(milvus))[1] | {"memory_id": 2, "backend": "somebody else"}
    await milvus.milvus.call("upsert", generation.collection, [foreign])
    await rows(milvus)
    with pytest.raises(IdentityError, match="another backend"):
        await ensure_collection(milvus.milvus, generation)


async def test_a_creation_that_was_cut_short_is_completed(database: Database, connection: MilvusConnection) -> None:
    """A collection without index, as a process killed in between leaves it, is indexed and loaded."""
    generation = await ensure_generation(database, Target.MILVUS, Letters())
    await ensure_collection(connection, generation)
    try:
        await connection.call("release_collection", generation.collection)
        await connection.call("drop_index", generation.collection, "vector")
        await ensure_collection(connection, generation)
        found = await connection.call(
            "search", generation.collection, data=[[0.5] * 8], anns_field="vector", limit=1, consistency_level="Strong"
        )
        assert list(found[0]) == []
    finally:
        await drop_collection(connection, generation)
