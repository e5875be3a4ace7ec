"""One backend per test, on the shared servers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from memplane.schema.database import Database
from memplane.settings import MilvusSettings, Neo4jSettings
from tests.rebuild.world import World


@pytest.fixture
async def world(
    database: Database, milvus_settings: MilvusSettings, neo4j_settings: Neo4jSettings
) -> AsyncIterator[World]:
    made = World(database, milvus_settings, neo4j_settings)
    yield made
    await made.close()
