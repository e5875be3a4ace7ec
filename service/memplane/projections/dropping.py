"""Removes what a backend has projected, and nothing of any other backend (`memplane drop`).

Milvus: every collection that a row of `projection_generation` names and that says it is this backend's. Neo4j: the
backend's nodes with their edges, in batches, so that no transaction grows with the graph.
"""

from __future__ import annotations

from collections.abc import Callable

from memplane.outbox.events import Target
from memplane.projections.generation import Generation
from memplane.projections.milvus_client import MilvusConnection
from memplane.projections.milvus_collection import drop_collection
from memplane.projections.neo4j_client import Neo4jConnection
from memplane.schema.database import Database
from memplane.schema.identity import read_identity

BATCH = 5_000

_GENERATIONS = """
SELECT id, target, state, collection, embedding_model, embedding_revision, dimensions
FROM {schema}.projection_generation WHERE target = 'milvus' AND collection IS NOT NULL ORDER BY id
"""

_DELETE_NODES = """
MATCH (m:Memory {backend: $backend})
WITH m LIMIT $limit
DETACH DELETE m
RETURN count(*) AS gone
"""


async def drop_collections(database: Database, milvus: MilvusConnection) -> list[str]:
    """Drop the backend's collections; returns their names. Raises `IdentityError` for one that is somebody else's."""
    backend = str(await read_identity(database))
    async with database.acquire() as connection:
        rows = await connection.fetch(database.sql(_GENERATIONS))
    for row in rows:
        generation = Generation(
            id=row["id"],
            target=Target.MILVUS,
            state=row["state"],
            backend=backend,
            collection=row["collection"],
            model=row["embedding_model"] or "",
            revision=row["embedding_revision"] or "",
            dimensions=row["dimensions"] or 0,
        )
        await drop_collection(milvus, generation)
    return [row["collection"] for row in rows]


async def drop_nodes(
    database: Database, neo4j: Neo4jConnection, progress: Callable[[int], None] = lambda _: None
) -> int:
    """Delete the backend's nodes and edges in batches; `progress` gets the number so far. Returns how many nodes."""
    backend, total = str(await read_identity(database)), 0
    while True:
        rows = await neo4j.run(_DELETE_NODES, {"backend": backend, "limit": BATCH})
        gone = int(rows[0]["gone"]) if rows else 0
        total += gone
        progress(total)
        if gone < BATCH:
            return total
