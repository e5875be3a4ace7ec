"""One database, collection and graph for each module of tests, and scopes of its own for each test.

Making a collection takes seconds, so tests share it; nothing of one scope is ever seen in another.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from memplane.contracts import EmbeddingProvider
from memplane.outbox.events import Target
from memplane.plugins.embeddings.hashing import HashingEmbedding, HashingSettings
from memplane.plugins.postgres.backend import PostgresBackend
from memplane.projections.embedding import StoredEmbeddings
from memplane.projections.milvus import MilvusProjection
from memplane.projections.milvus_client import MilvusConnection
from memplane.projections.milvus_collection import drop_collection
from memplane.projections.neo4j import Neo4jProjection
from memplane.projections.neo4j_client import Neo4jConnection
from memplane.retrieval.embedding import embed_contents
from memplane.schema.database import Database
from memplane.settings import MilvusSettings, Neo4jSettings, PostgresSettings
from tests import conftest as shared
from tests.plugins.search.world import World
from tests.stack import Stack

DIMENSIONS = 64


async def embed(provider: EmbeddingProvider, texts: Sequence[str], size: int) -> Sequence[Sequence[float]]:
    return await embed_contents(provider, texts, size)


def embedding() -> EmbeddingProvider:
    return HashingEmbedding(HashingSettings(dimensions=DIMENSIONS))


@pytest.fixture(scope="module")
def module_postgres(stack: Stack, postgres_template: str) -> Iterator[PostgresSettings]:
    yield from shared._fresh(stack, postgres_template, identity=True)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_world(
    module_postgres: PostgresSettings, milvus_settings: MilvusSettings, neo4j_settings: Neo4jSettings
) -> AsyncIterator[World]:
    async with AsyncExitStack() as ending:
        database = Database(module_postgres, application_name="memplane-tests")
        await database.open()
        ending.push_async_callback(database.close)
        provider = embedding()
        store = PostgresBackend(database, targets={Target.MILVUS, Target.NEO4J})
        stored = StoredEmbeddings(database, provider, embed)
        milvus = MilvusProjection(database, MilvusConnection(milvus_settings), stored)
        ending.push_async_callback(milvus.close)
        neo4j = Neo4jProjection(database, Neo4jConnection(neo4j_settings))
        ending.push_async_callback(neo4j.close)
        await store.start()
        generation = await milvus.generation()
        ending.push_async_callback(drop_collection, milvus.milvus, generation)
        await neo4j.start()
        ending.push_async_callback(_forget, neo4j, generation.backend)
        yield World(database, store, provider, milvus, neo4j)


async def _forget(neo4j: Neo4jProjection, backend: str) -> None:
    await neo4j.neo4j.run("MATCH (m:Memory {backend: $backend}) DETACH DELETE m", {"backend": backend})


@pytest_asyncio.fixture(loop_scope="module")
async def world(module_world: World) -> AsyncIterator[World]:
    world = World(*(getattr(module_world, name) for name in ("database", "store", "embedding", "milvus", "neo4j")))
    yield world
    for backend in world.made:
        await backend.close()
