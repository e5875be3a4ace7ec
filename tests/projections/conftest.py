"""Targets on the shared servers, under a backend id of the test's own, removed afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from memplane.projections.clients import MilvusConnection, Neo4jConnection
from memplane.projections.milvus import MilvusProjection
from memplane.projections.milvus_collection import drop_collection
from memplane.projections.neo4j import Neo4jProjection
from memplane.schema.database import Database
from memplane.settings import MilvusSettings, Neo4jSettings
from tests.projections.support import Letters, stored_embeddings


@pytest.fixture
def provider() -> Letters:
    return Letters()


@pytest.fixture
async def milvus(
    database: Database, milvus_settings: MilvusSettings, provider: Letters
) -> AsyncIterator[MilvusProjection]:
    projection = MilvusProjection(database, MilvusConnection(milvus_settings), stored_embeddings(database, provider))
    yield projection
    await drop_collection(projection.milvus, await projection.generation())
    await projection.close()


@pytest.fixture
async def neo4j(database: Database, neo4j_settings: Neo4jSettings, backend_id: UUID) -> AsyncIterator[Neo4jProjection]:
    projection = Neo4jProjection(database, Neo4jConnection(neo4j_settings))
    yield projection
    await projection.neo4j.run("MATCH (m:Memory {backend: $backend}) DETACH DELETE m", {"backend": str(backend_id)})
    await projection.close()
