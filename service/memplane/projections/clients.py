"""Connections to the projection targets, one door for each process (see `milvus_client`, `neo4j_client`)."""

from __future__ import annotations

from memplane.projections.milvus_client import MilvusConnection
from memplane.projections.neo4j_client import Neo4jConnection
from memplane.settings import MilvusSettings, Neo4jSettings

__all__ = ["MilvusConnection", "Neo4jConnection", "open_milvus", "open_neo4j"]


async def open_milvus(settings: MilvusSettings) -> MilvusConnection:
    """A connection to Milvus or a Milvus Lite file. Raises `TargetUnavailable` when it does not answer."""
    connection = MilvusConnection(settings)
    try:
        await connection.open()
    except BaseException:
        await connection.close()
        raise
    return connection


async def open_neo4j(settings: Neo4jSettings) -> Neo4jConnection:
    """A connection to Neo4j. Raises `TargetUnavailable` when it does not answer."""
    connection = Neo4jConnection(settings)
    try:
        await connection.open()
    except BaseException:
        await connection.close()
        raise
    return connection
