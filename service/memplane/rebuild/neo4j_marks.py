"""The marks of a rebuild in the graph: a property `rebuild` with the rebuild's number, on nodes and relations.

A mark is no projected field, so no digest covers it and no reader sees it. A worker that writes a node or a relation
meanwhile takes its mark off, which only means that the sweep looks it up in the truth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from memplane.projections.neo4j_client import Neo4jConnection

SECONDS = 60.0
"""Deadline of one statement over a page."""

_MARK_NODES = """
UNWIND $ids AS id
MATCH (m:Memory {backend: $backend, memory_id: id})
SET m.rebuild = $mark
"""

_MARK_EDGES = """
UNWIND $ids AS id
MATCH (m:Memory {backend: $backend, memory_id: id})
REMOVE m.lock
WITH m
MATCH (m)-[r:RELATES]->() WHERE r.backend IS NULL OR r.backend = $backend
SET r.rebuild = $mark
"""

_PAGE = """
MATCH (m:Memory {backend: $backend}) WHERE m.memory_id > $after
RETURN m.memory_id AS memory_id ORDER BY m.memory_id LIMIT $limit
"""

# A bare node has no version: it goes with the last edge that ends there, so its edges decide.
_UNMARKED_NODES = """
MATCH (m:Memory {backend: $backend})
WHERE m.memory_id > $after AND m.memory_id <= $last AND (m.rebuild IS NULL OR m.rebuild <> $mark)
  AND (m.version IS NOT NULL OR NOT EXISTS { (m)-[:RELATES]-() })
RETURN m.memory_id AS memory_id, m.tenant AS tenant, m.user_id AS user_id
"""

_UNMARKED_EDGES = """
MATCH (m:Memory {backend: $backend})-[r:RELATES]->()
WHERE m.memory_id > $after AND m.memory_id <= $last
  AND (r.backend IS NULL OR r.backend = $backend) AND (r.rebuild IS NULL OR r.rebuild <> $mark)
RETURN DISTINCT m.memory_id AS memory_id, m.tenant AS tenant, m.user_id AS user_id
"""

# Nodes that claim this backend and name no memory: somebody's hand, or a defect, has made them.
_SWEEP_NAMELESS = """
MATCH (m:Memory {backend: $backend})
WHERE NOT coalesce(m.memory_id >= 0 OR m.memory_id < 0, FALSE)
WITH m LIMIT $limit
DETACH DELETE m
RETURN count(*) AS gone
"""

_UNMARK = """
MATCH (m:Memory {backend: $backend}) WHERE m.memory_id > $after AND m.memory_id <= $last
REMOVE m.rebuild
WITH m
MATCH (m)-[r:RELATES]->() WHERE r.rebuild IS NOT NULL
REMOVE r.rebuild
"""


@dataclass(frozen=True, slots=True)
class Unmarked:
    """An object without the mark: the memory that it, or the source of the relation, names, and whose it says it is."""

    memory_id: int
    tenant: str
    user_id: str


class Marks:
    """The marks of one rebuild. Statements raise `TargetUnavailable` and `ProjectionRefused`."""

    def __init__(self, neo4j: Neo4jConnection, backend: str, mark: int) -> None:
        self._neo4j = neo4j
        self._names: dict[str, Any] = {"backend": backend, "mark": mark}

    async def set_nodes(self, ids: Sequence[int]) -> None:
        await self._run(_MARK_NODES, ids=sorted(ids))

    async def set_edges(self, sources: Sequence[int]) -> None:
        """Mark the outgoing relations of these sources."""
        await self._run(_MARK_EDGES, ids=sorted(sources))

    async def page(self, after: int, limit: int) -> list[int]:
        """The next `limit` memory ids that nodes of this backend name, in order."""
        return [row["memory_id"] for row in await self._run(_PAGE, after=after, limit=limit)]

    async def unmarked_nodes(self, after: int, last: int) -> list[Unmarked]:
        return [_unmarked(row) for row in await self._run(_UNMARKED_NODES, after=after, last=last)]

    async def unmarked_edges(self, after: int, last: int) -> list[Unmarked]:
        """The sources that have an unmarked relation."""
        return [_unmarked(row) for row in await self._run(_UNMARKED_EDGES, after=after, last=last)]

    async def sweep_nameless(self, limit: int) -> int:
        """Delete up to `limit` nodes that name no memory; returns how many."""
        rows = await self._run(_SWEEP_NAMELESS, limit=limit)
        return int(rows[0]["gone"]) if rows else 0

    async def remove(self, after: int, last: int) -> None:
        """Take every rebuild's mark off the nodes after < id <= last and their outgoing relations."""
        await self._run(_UNMARK, after=after, last=last)

    async def _run(self, query: str, **parameters: Any) -> list[dict[str, Any]]:
        return await self._neo4j.run(query, {**self._names, **parameters}, timeout=SECONDS)


def _unmarked(row: dict[str, Any]) -> Unmarked:
    return Unmarked(row["memory_id"], _text(row["tenant"]), _text(row["user_id"]))


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
