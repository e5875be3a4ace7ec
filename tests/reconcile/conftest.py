"""The targets of tests/projections, and a world whose events are worked off by hand."""

from __future__ import annotations

from tests.projections.conftest import milvus, neo4j, provider

__all__ = ["milvus", "neo4j", "provider"]
