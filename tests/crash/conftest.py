"""A deployment on the real servers; what it makes there is removed afterwards."""

from __future__ import annotations

import pytest

from memplane.projections.milvus import MilvusProjection
from memplane.projections.neo4j import Neo4jProjection
from memplane.schema.database import Database
from memplane.settings import MilvusSettings, Neo4jSettings, PostgresSettings
from tests.crash.support import Deployment
from tests.projections.conftest import milvus, neo4j, provider

__all__ = ["milvus", "neo4j", "provider"]


@pytest.fixture
async def deployment(  # noqa: PLR0917 - what a deployment is made of
    database: Database,
    postgres_settings: PostgresSettings,
    milvus_settings: MilvusSettings,
    neo4j_settings: Neo4jSettings,
    milvus: MilvusProjection,
    neo4j: Neo4jProjection,
) -> Deployment:
    """The targets' own fixtures clean up."""
    await milvus.start()
    await neo4j.start()
    return Deployment(database, postgres_settings, milvus_settings, neo4j_settings)
