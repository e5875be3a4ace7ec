"""Edges of memories: made from `metadata.relations`, versioned by their source, removed with either end.

Every change of a source's outgoing edges raises its `edges_version` by one, and each changed edge takes that value as
its version. An edge that is removed stays as a tombstone, and comes back as the same row with a higher version. All of
it happens under the source's row lock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from memplane.contracts import Scope
from memplane.plugins.postgres.hashes import relation_hash
from memplane.plugins.postgres.locks import scope_binds
from memplane.schema.database import Connection, Database

Relation = tuple[str, int]
"""Type and target of a live outgoing edge."""


@dataclass(frozen=True, slots=True)
class EdgeState:
    """An edge as it is to be stored."""

    source_id: int
    type: str
    target_id: int
    tenant: str
    user_id: str
    version: int
    deleted: bool = False


_TOUCHING: Final = """
SELECT e.source_id, e.type, e.target_id, e.tenant, e.user_id FROM {schema}.memory_edge AS e
WHERE (e.source_id = ANY($1::bigint[]) OR e.target_id = ANY($1::bigint[])) AND e.deleted_at IS NULL
  AND ($2::text IS NULL OR (e.tenant = $2 AND e.user_id = $3))
"""
_INCOMING: Final = """
SELECT DISTINCT e.source_id FROM {schema}.memory_edge AS e
WHERE e.target_id = ANY($1::bigint[]) AND e.deleted_at IS NULL
  AND ($2::text IS NULL OR (e.tenant = $2 AND e.user_id = $3))
"""
_OUTGOING: Final = """
SELECT e.source_id, e.type, e.target_id FROM {schema}.memory_edge AS e
WHERE e.source_id = ANY($1::bigint[]) AND e.deleted_at IS NULL AND e.tenant = $2 AND e.user_id = $3
"""
_STORE: Final = """
INSERT INTO {schema}.memory_edge AS e
    (source_id, type, target_id, tenant, user_id, version, relation_hash, deleted_at)
SELECT r.source_id, r.type, r.target_id, r.tenant, r.user_id, r.version, r.relation_hash,
       CASE WHEN r.deleted THEN now() END
FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::text[], $5::text[], $6::bigint[], $7::text[], $8::boolean[])
     AS r (source_id, type, target_id, tenant, user_id, version, relation_hash, deleted)
ON CONFLICT (source_id, type, target_id) DO UPDATE
SET version = excluded.version, relation_hash = excluded.relation_hash, deleted_at = excluded.deleted_at,
    updated_at = now(), changed_xid = pg_current_xact_id()
"""


async def touching_edges(
    connection: Connection, database: Database, scope: Scope | None, ids: Collection[int]
) -> list[EdgeState]:
    """Live edges that begin or end at one of `ids`, as tombstones without a version yet."""
    rows = await connection.fetch(database.sql(_TOUCHING), list(ids), *scope_binds(scope))
    return [
        EdgeState(r["source_id"], r["type"], r["target_id"], r["tenant"], r["user_id"], version=0, deleted=True)
        for r in rows
    ]


async def incoming_sources(
    connection: Connection, database: Database, scope: Scope | None, ids: Collection[int]
) -> set[int]:
    """Memories with a live edge to one of `ids`."""
    rows = await connection.fetch(database.sql(_INCOMING), list(ids), *scope_binds(scope))
    return {row["source_id"] for row in rows}


async def outgoing(
    connection: Connection, database: Database, scope: Scope, ids: Collection[int]
) -> dict[int, set[Relation]]:
    """The live relations of each of `ids` that has any."""
    found: dict[int, set[Relation]] = {}
    for row in await connection.fetch(database.sql(_OUTGOING), list(ids), scope.tenant, scope.user):
        found.setdefault(row["source_id"], set()).add((row["type"], row["target_id"]))
    return found


def changed_edges(
    scope: Scope, source_id: int, version: int, held: Collection[Relation], wanted: Iterable[Relation]
) -> list[EdgeState]:
    """What turns the relations `held` into `wanted`; every changed edge takes `version`. Pure."""
    target = set(wanted)
    return [
        EdgeState(
            source_id, kind, target_id, scope.tenant, scope.user, version, deleted=(kind, target_id) not in target
        )
        for kind, target_id in sorted(set(held) ^ target)
    ]


async def store_edges(connection: Connection, database: Database, edges: Sequence[EdgeState]) -> None:
    """Insert, revive or tombstone edges, in one statement."""
    if not edges:
        return
    await connection.execute(
        database.sql(_STORE),
        [edge.source_id for edge in edges],
        [edge.type for edge in edges],
        [edge.target_id for edge in edges],
        [edge.tenant for edge in edges],
        [edge.user_id for edge in edges],
        [edge.version for edge in edges],
        [_hash(edge) for edge in edges],
        [edge.deleted for edge in edges],
    )


def _hash(edge: EdgeState) -> str:
    return relation_hash(
        source_id=edge.source_id,
        kind=edge.type,
        target_id=edge.target_id,
        tenant=edge.tenant,
        user_id=edge.user_id,
        version=edge.version,
        deleted=edge.deleted,
    )
