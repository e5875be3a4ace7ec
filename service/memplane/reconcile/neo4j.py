"""Neo4j's side of a comparison: nodes, and edges by source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from memplane.outbox.events import Needs, Target, Truth
from memplane.projections.generation import Generation
from memplane.projections.neo4j_client import Neo4jConnection
from memplane.projections.neo4j_edges import HeldEdge, held_edge, whole
from memplane.projections.neo4j_node import digest, properties
from memplane.reconcile.diff import Expected, HeldObject
from memplane.reconcile.inventory import HeldEdges
from memplane.reconcile.truth import FIRST_ID

LIMIT = 5000
"""Nodes of one read."""

READ_SECONDS = 60.0
"""Deadline of one read of a range."""

# Ordered like the unique index, so that the database reads a range in order instead of sorting it.
_NODE = "RETURN properties(m) AS node, m.version IS NULL AND EXISTS { (m)-[:RELATES]-() } AS needed"

_NODES_BETWEEN = f"""
MATCH (m:Memory) WHERE m.backend = $backend AND m.memory_id > $low AND m.memory_id <= $high
WITH m ORDER BY m.backend, m.memory_id LIMIT $limit
{_NODE}
"""

_NODES_OF = f"""
MATCH (m:Memory) WHERE m.backend = $backend AND m.memory_id IN $ids
WITH m ORDER BY m.backend, m.memory_id
{_NODE}
"""

_EDGE = """
MATCH (s)-[r:RELATES]->(t)
WITH s, r, t, t:Memory AND t.backend = $backend AS ours
RETURN s.memory_id AS source, elementId(r) AS reference, r.backend AS backend, r.type AS type, r.version AS version,
       r.relation_hash AS relation_hash, CASE WHEN ours THEN t.memory_id END AS target_id,
       ours AND t.version IS NULL AS bare
"""

_EDGES_BETWEEN = f"""
MATCH (s:Memory) WHERE s.backend = $backend AND s.memory_id > $low AND s.memory_id <= $high
{_EDGE}
"""

_EDGES_OF = f"MATCH (s:Memory) WHERE s.backend = $backend AND s.memory_id IN $ids {_EDGE}"

# Bare nodes are counted too: leaving them out would read every node's properties.
_COUNT = "MATCH (m:Memory) WHERE m.backend = $backend AND m.memory_id > $low RETURN count(m) AS count"


class Neo4jInventory:
    """An `Inventory` over the nodes and edges that carry the backend's id."""

    def __init__(self, neo4j: Neo4jConnection, generation: Generation) -> None:
        self._neo4j = neo4j
        self._generation = generation

    @property
    def target(self) -> Target:
        return Target.NEO4J

    @property
    def needs(self) -> Needs:
        return Needs(fields=True)

    @property
    def backend(self) -> str:
        return self._generation.backend

    @property
    def holds_edges(self) -> bool:
        return True

    def expected(self, truth: Truth) -> Expected:
        node = properties(truth, self._generation)
        return Expected(truth.memory_id, truth.version, node["projection_hash"])

    async def count(self) -> int:
        rows = await self._read(_COUNT, {"low": FIRST_ID})
        return int(rows[0]["count"])

    async def objects_between(self, low: int, high: int) -> list[HeldObject]:
        found: list[HeldObject] = []
        while True:
            rows = await self._read(_NODES_BETWEEN, {"low": low, "high": high, "limit": LIMIT})
            found += self._objects(rows)
            if len(rows) < LIMIT:
                return found
            low = found[-1].memory_id

    async def objects_of(self, memory_ids: Sequence[int]) -> list[HeldObject]:
        return self._objects(await self._read(_NODES_OF, {"ids": list(memory_ids)}))

    async def edges_between(self, low: int, high: int) -> HeldEdges:
        return _edges(await self._read(_EDGES_BETWEEN, {"low": low, "high": high}))

    async def edges_of(self, sources: Sequence[int]) -> HeldEdges:
        return _edges(await self._read(_EDGES_OF, {"ids": list(sources)}))

    async def _read(self, query: str, parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
        # Without `read`, so that a cluster answers from its leader.
        return await self._neo4j.run(query, {"backend": self.backend, **parameters}, timeout=READ_SECONDS)

    def _objects(self, rows: Sequence[Mapping[str, Any]]) -> list[HeldObject]:
        space = self._generation.space
        return [
            HeldObject(
                node["memory_id"],
                # What is no number is older than every version.
                None if (version := node.get("version")) is None else whole(version) or 0,
                node.get("projection_hash", ""),
                digest(node, space),
                node.get("tenant", ""),
                node.get("user_id", ""),
                row["needed"],
            )
            for row in rows
            for node in (row["node"],)
        ]


def _edges(rows: Sequence[Mapping[str, Any]]) -> HeldEdges:
    by_source: dict[int, list[HeldEdge]] = {}
    for row in rows:
        by_source.setdefault(row["source"], []).append(held_edge(row))
    return HeldEdges(by_source, frozenset(row["target_id"] for row in rows if row["bare"]))
