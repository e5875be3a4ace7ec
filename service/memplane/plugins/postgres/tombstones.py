"""Turning memories into tombstones, with their edges and events. Shared by DELETE, WRITE (expired keys) and the sweep.

Invariant: a live edge never ends at a tombstone. Making an edge takes its target FOR SHARE, making a tombstone takes
the memory and every source that points to it FOR UPDATE; the sources are read again under the locks, and if one has
joined since, the transaction starts over.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from memplane.contracts import Scope
from memplane.outbox.enqueue import Change
from memplane.plugins.postgres.calls import StartOver
from memplane.plugins.postgres.edges import EdgeState, incoming_sources, store_edges, touching_edges
from memplane.plugins.postgres.hashes import Hashed, content_hash
from memplane.plugins.postgres.locks import lock_and_read, scope_binds
from memplane.plugins.postgres.rows import Row
from memplane.schema.canonical import canonical
from memplane.schema.database import Connection, Database

_COLUMNS: Final = """
m.id, m.tenant, m.user_id, m.key, m.text_hash, m.document IS NOT NULL AS is_document, m.importance, m.category, m.tags,
m.slot_hint, m.expires_at, m.version, m.edges_version, m.content_hash, m.updated_at, m.deleted_at,
clock_timestamp() AS now, m.expires_at <= clock_timestamp() AS expired
"""

_CHUNK: Final = 500
"""Rows whose metadata is held in memory at a time."""

_IN_SCOPE: Final = "($1::text IS NULL OR (m.tenant = $1 AND m.user_id = $2))"
_METADATA: Final = f"""
SELECT m.id, m.metadata FROM {{schema}}.long_term_memory AS m WHERE {_IN_SCOPE} AND m.id = ANY($3::bigint[])
"""
_BURY: Final = f"""
UPDATE {{schema}}.long_term_memory AS m
SET deleted_at = $3, updated_at = $3, version = r.version, edges_version = r.edges_version,
    content_hash = r.content_hash, changed_xid = pg_current_xact_id()
FROM unnest($4::bigint[], $5::bigint[], $6::bigint[], $7::text[]) AS r (id, version, edges_version, content_hash)
WHERE {_IN_SCOPE} AND m.id = r.id
"""
_COUNT_EDGES: Final = f"""
UPDATE {{schema}}.long_term_memory AS m
SET edges_version = r.edges_version, changed_xid = pg_current_xact_id()
FROM unnest($3::bigint[], $4::bigint[]) AS r (id, edges_version)
WHERE {_IN_SCOPE} AND m.id = r.id
"""


@dataclass(frozen=True, slots=True)
class Condemned:
    """Rows that are locked and may become tombstones, with everything that goes with them."""

    scope: Scope | None
    """None when the sweep works on all scopes."""
    rows: Sequence[Row]
    """In ascending id."""
    locked: dict[int, Row]
    """All locked rows, the sources of incoming edges included."""
    edges: Sequence[EdgeState]


async def condemn(
    connection: Connection,
    database: Database,
    scope: Scope | None,
    ids: Collection[int],
    *,
    chosen: Callable[[Row], bool],
    share: Collection[int] = (),
) -> Condemned:
    """Lock `ids`, the sources of their incoming edges and `share`; choose the rows (tombstones are never among them).

    Raises `StartOver` when a source has joined between the first look and the locks.
    """
    change = set(ids) | await incoming_sources(connection, database, scope, ids)
    locked = await lock_and_read(connection, database, scope, change=change, share=share, columns=_COLUMNS)
    rows = [row for key, row in locked.items() if key in set(ids) and row["deleted_at"] is None and chosen(row)]
    edges = await touching_edges(connection, database, scope, [row["id"] for row in rows]) if rows else []
    if any(edge.source_id not in locked for edge in edges):
        raise StartOver
    return Condemned(scope, rows, locked, edges)


async def bury(connection: Connection, database: Database, condemned: Condemned) -> list[Change]:
    """Make the tombstones; returns the changes that are to be enqueued in the same transaction."""
    if not condemned.rows:
        return []
    now = max(max(row["now"], row["updated_at"]) for row in condemned.rows)
    touched = {edge.source_id for edge in condemned.edges}
    versions = {source: condemned.locked[source]["edges_version"] + 1 for source in touched}
    changes: list[Change] = []
    for start in range(0, len(condemned.rows), _CHUNK):
        rows = condemned.rows[start : start + _CHUNK]
        changes += await _bury_rows(connection, database, replace(condemned, rows=rows), versions, now)
    removed = [replace(edge, version=versions[edge.source_id]) for edge in condemned.edges]
    await store_edges(connection, database, removed)
    survivors = sorted(touched - {row["id"] for row in condemned.rows})
    if survivors:
        counts = [versions[source] for source in survivors]
        await connection.execute(database.sql(_COUNT_EDGES), *scope_binds(condemned.scope), survivors, counts)
    return changes + [_edges_change(condemned.locked[source], versions[source]) for source in survivors]


async def _bury_rows(
    connection: Connection,
    database: Database,
    part: Condemned,
    versions: dict[int, int],
    now: datetime,
) -> list[Change]:
    rows = part.rows
    ids, binds = [row["id"] for row in rows], scope_binds(part.scope)
    texts = {r["id"]: r["metadata"] for r in await connection.fetch(database.sql(_METADATA), *binds, ids)}
    hashes = [_tombstone_hash(row, texts[row["id"]], now) for row in rows]
    edges = {row["id"]: row["edges_version"] for row in rows} | versions
    await connection.execute(
        database.sql(_BURY), *binds, now, ids, [row["version"] + 1 for row in rows], [edges[i] for i in ids], hashes
    )
    return [
        Change(
            memory_id=row["id"],
            tenant=row["tenant"],
            user_id=row["user_id"],
            version=row["version"] + 1,
            content_hash=digest,
            operation="delete",
            edges=row["id"] in versions,
            edges_version=edges[row["id"]],
        )
        for row, digest in zip(rows, hashes, strict=True)
    ]


def _tombstone_hash(row: Row, metadata: str | None, now: datetime) -> str:
    return content_hash(
        Hashed(
            memory_id=row["id"],
            tenant=row["tenant"],
            user_id=row["user_id"],
            key=row["key"],
            text_hash=row["text_hash"],
            is_document=row["is_document"],
            metadata=None if metadata is None else canonical(json.loads(metadata)),
            importance=row["importance"],
            category=row["category"],
            tags=row["tags"],
            slot_hint=row["slot_hint"],
            expires_at=row["expires_at"],
            version=row["version"] + 1,
            deleted_at=now,
        )
    )


def _edges_change(row: Row, edges_version: int) -> Change:
    """A surviving source lost edges: its node is as it was."""
    return Change(
        memory_id=row["id"],
        tenant=row["tenant"],
        user_id=row["user_id"],
        version=row["version"],
        content_hash=row["content_hash"],
        operation="upsert",
        node=False,
        edges=True,
        edges_version=edges_version,
    )
