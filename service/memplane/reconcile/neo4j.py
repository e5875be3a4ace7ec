"""Neo4j's side of a comparison: nodes, and edges by source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from memplane.outbox.events import Needs, Target, Truth
from memplane.projections.generation import Generation
from memplane.projections.neo4j_client import Neo4jConnection
from memplane.projections.neo4j_edges import HeldEdge, held_edge, whole
from memplane.projections.neo4j_node import digest, properties
from memplane.reconcile.diff import Difference, Expected, HeldObject, diff_objects
from memplane.reconcile.inventory import HeldEdges, Side
from memplane.reconcile.record import FIRST_ID
from memplane.reconcile.truth import Row, Vectors, truth_of

LIMIT = 5000
"""Nodes of one read."""

PAGE = 4000
"""Memories of one comparison."""

NEEDS = Needs(fields=True)

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
    def generation_id(self) -> int:
        return self._generation.id

    @property
    def needs(self) -> Needs:
        return NEEDS

    @property
    def vectors(self) -> Vectors | None:
        return None

    @property
    def page(self) -> int:
        return PAGE

    @property
    def backend(self) -> str:
        return self._generation.backend

    @property
    def holds_edges(self) -> bool:
        return True

    def expected(self, truth: Truth, vector: bytes | None) -> Expected:
        return _expected(truth, self._generation)

    async def open(self) -> None:
        """Nodes carry their backend's id, so there is nothing to make sure of; `count` is the first call."""

    async def count(self) -> int:
        rows = await self._read(_COUNT, {"low": FIRST_ID})
        return int(rows[0]["count"])

    async def between(self, low: int, high: int) -> Side:
        found: list[dict[str, Any]] = []
        while True:
            rows = await self._read(_NODES_BETWEEN, {"low": low, "high": high, "limit": LIMIT})
            found += rows
            if len(rows) < LIMIT:
                return Neo4jSide(found, self._generation)
            low = rows[-1]["node"]["memory_id"]

    async def among(self, memory_ids: Sequence[int]) -> Side:
        return Neo4jSide(await self._read(_NODES_OF, {"ids": list(memory_ids)}), self._generation)

    async def objects_of(self, memory_ids: Sequence[int]) -> list[HeldObject]:
        rows = await self._read(_NODES_OF, {"ids": list(memory_ids)})
        return [_object(row, self._generation) for row in rows]

    async def edges_between(self, low: int, high: int) -> HeldEdges:
        return _edges(await self._read(_EDGES_BETWEEN, {"low": low, "high": high}))

    async def edges_of(self, sources: Sequence[int]) -> HeldEdges:
        return _edges(await self._read(_EDGES_OF, {"ids": list(sources)}))

    async def _read(self, query: str, parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
        # Without `read`, so that a cluster answers from its leader.
        return await self._neo4j.run(query, {"backend": self.backend, **parameters}, timeout=READ_SECONDS)


class Neo4jSide:
    """Nodes as the database gives them."""

    def __init__(self, nodes: Sequence[Mapping[str, Any]], generation: Generation) -> None:
        self._nodes = nodes
        self._generation = generation

    def differences(self, rows: Sequence[Row]) -> Sequence[Difference]:
        """Whatever equals the node that the truth gives is done with; only of the rest a digest is made."""
        held = {row["node"]["memory_id"]: row for row in self._nodes}
        expected: list[Expected] = []
        same: set[int] = set()
        for row in rows:
            truth = truth_of(row, NEEDS)
            node = properties(truth, self._generation)
            found = held.get(truth.memory_id)
            if found is not None and _equal(node, found["node"]):
                same.add(truth.memory_id)
            else:
                expected.append(Expected(truth.memory_id, truth.version, node["projection_hash"]))
        odd = [_object(row, self._generation) for row in self._nodes if row["node"]["memory_id"] not in same]
        return list(diff_objects(expected, odd))


def _equal(want: Mapping[str, Any], have: Mapping[str, Any]) -> bool:
    """Whether a node holds the very values: 1, 1.0 and true are equal to Python, but not to a digest."""
    return (
        len(have) - ("edges_version" in have) == len(want)
        and all(have.get(name) == value for name, value in want.items())
        and all(type(have.get(name)) is type(want.get(name)) for name in _NUMBERS)
    )


_NUMBERS = ("memory_id", "version", "importance", "expires_at")


def _expected(truth: Truth, generation: Generation) -> Expected:
    node = properties(truth, generation)
    return Expected(truth.memory_id, truth.version, node["projection_hash"])


def _object(row: Mapping[str, Any], generation: Generation) -> HeldObject:
    node = row["node"]
    version = node.get("version")
    return HeldObject(
        node["memory_id"],
        # What is no number is older than every version.
        None if version is None else whole(version) or 0,
        node.get("projection_hash", ""),
        digest(node, generation.space),
        node.get("tenant", ""),
        node.get("user_id", ""),
        row["needed"],
    )


def _edges(rows: Sequence[Mapping[str, Any]]) -> HeldEdges:
    by_source: dict[int, list[HeldEdge]] = {}
    for row in rows:
        by_source.setdefault(row["source"], []).append(held_edge(row))
    return HeldEdges(by_source, frozenset(row["target_id"] for row in rows if row["bare"]))
