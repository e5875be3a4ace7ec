"""Real PostgreSQL, Milvus and Neo4j; what a test makes there is removed afterwards."""

from __future__ import annotations

import pytest
from tests.crash.conftest import deployment, milvus, neo4j, provider

from memplane.outbox.events import ProjectionTarget, Target
from memplane.projections.milvus import MilvusProjection
from memplane.projections.neo4j import Neo4jProjection

__all__ = ["deployment", "milvus", "neo4j", "provider"]


@pytest.fixture(params=[Target.MILVUS, Target.NEO4J])
def target(request: pytest.FixtureRequest, milvus: MilvusProjection, neo4j: Neo4jProjection) -> ProjectionTarget:
    """Each projection in turn."""
    return milvus if request.param is Target.MILVUS else neo4j
