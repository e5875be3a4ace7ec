"""Reading what a plan is made from, in one REPEATABLE READ transaction: a window of one scope's memories.

A window is a range of ids. Memories elsewhere in the scope that hold the same text as one of it are read with it, so
exact duplicates are found however far apart they are; near duplicates are compared within a window.
"""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from memplane.consolidation.memory import MAX_REFERRERS, Memory, Relation, Snapshot
from memplane.contracts import JSON, Scope
from memplane.plugins.postgres.documents import stored_content
from memplane.projections.embedding import unpack
from memplane.schema.database import Connection, Database

METADATA_BYTES: Final = 64 * 2**20
"""A window ends early when the metadata of its memories exceeds this."""

CONTENT_BYTES: Final = 64 * 2**20
"""Contents are read for a policy until they exceed this; groups without all of theirs wait for another plan."""

EVERYTHING: Final = -(2**62)
"""The id before the first window."""

_COLUMNS: Final = """
m.id, m.version, m.key, m.text_hash, m.document IS NOT NULL AS is_document, m.metadata, m.importance, m.category,
m.slot_hint, m.expires_at, m.created_at, m.updated_at
"""
_SCOPE: Final = "m.tenant = $1 AND m.user_id = $2 AND m.deleted_at IS NULL"
_WINDOW: Final = f"""
SELECT {_COLUMNS} FROM {{schema}}.long_term_memory AS m
WHERE {_SCOPE} AND m.id > $3 ORDER BY m.id LIMIT $4
"""
_TWINS: Final = f"""
SELECT {_COLUMNS} FROM {{schema}}.long_term_memory AS m
WHERE {_SCOPE} AND m.text_hash = ANY($3::bytea[]) AND m.id <> ALL($4::bigint[]) ORDER BY m.id LIMIT $5
"""
_ROWS: Final = f"""
SELECT {_COLUMNS} FROM {{schema}}.long_term_memory AS m WHERE {_SCOPE} AND m.id = ANY($3::bigint[])
"""
_SPACE: Final = """
SELECT embedding_model, embedding_revision, dimensions FROM {schema}.projection_generation
WHERE target = 'milvus' AND state = 'active'
"""
_VECTORS: Final = """
SELECT e.text_hash, e.vector FROM {schema}.memory_embedding AS e
WHERE e.tenant = $1 AND e.text_hash = ANY($2::bytea[]) AND e.model = $3 AND e.revision = $4 AND e.dimensions = $5
"""
_INCOMING: Final = """
SELECT w.id, i.sources
FROM unnest($1::bigint[]) AS w (id)
CROSS JOIN LATERAL (
    SELECT array_agg(s.source_id) AS sources FROM (
        SELECT DISTINCT e.source_id FROM {schema}.memory_edge AS e
        WHERE e.target_id = w.id AND e.deleted_at IS NULL AND e.tenant = $2 AND e.user_id = $3 LIMIT $4) AS s) AS i
WHERE i.sources IS NOT NULL
"""
_OUTGOING: Final = """
SELECT e.source_id, e.type, e.target_id FROM {schema}.memory_edge AS e
WHERE e.source_id = ANY($1::bigint[]) AND e.deleted_at IS NULL AND e.tenant = $2 AND e.user_id = $3
"""
_CONTENTS: Final = f"""
SELECT m.id, m.content, m.document FROM {{schema}}.long_term_memory AS m
WHERE {_SCOPE} AND m.id = ANY($3::bigint[]) ORDER BY m.id
"""
_SCOPES: Final = """
SELECT tenant, user_id FROM {schema}.long_term_memory AS m
WHERE (m.tenant, m.user_id) > ($1, $2) AND ($3::text IS NULL OR m.tenant = $3) AND m.deleted_at IS NULL
ORDER BY m.tenant, m.user_id LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class Window:
    """A snapshot, and where the next window begins; `following` None: it was the last one."""

    snapshot: Snapshot
    following: int | None


Members = Callable[[Snapshot], Collection[int]]
"""The memories that a plan will merge or rewrite: for them, relations are read too."""


async def read_window(
    database: Database,
    scope: Scope,
    *,
    after: int,
    size: int,
    members: Members,
    with_vectors: bool,
    with_contents: bool,
) -> Window:
    """The memories of `scope` with ids above `after`, at most `size`. Embeddings are those of the active generation."""
    async with database.acquire() as connection, connection.transaction(isolation="repeatable_read", readonly=True):
        taken_at = await connection.fetchval("SELECT now()")
        rows, following = await _window(connection, database, scope, after, size)
        hashes = list({row["text_hash"] for row in rows})
        ids = [row["id"] for row in rows]
        rows += await connection.fetch(database.sql(_TWINS), scope.tenant, scope.user, hashes, ids, size)
        memories = {row["id"]: _memory(row, frozenset()) for row in rows}
        vectors = await _vectors(connection, database, scope, memories) if with_vectors else {}
        bare = Snapshot(scope, taken_at, memories, vectors)
        # It compares every pair: nobody else of this process waits for that.
        chosen = sorted(await asyncio.to_thread(members, bare))
        snapshot = await _related(connection, database, bare, chosen)
        if with_contents and chosen:
            contents = await _contents(connection, database, scope, chosen)
            snapshot = replace(snapshot, contents=contents)
    return Window(snapshot, following)


async def scopes(database: Database, tenant: str | None = None) -> AsyncIterator[Scope]:
    """Every scope that has memories (of one tenant, if given), in order; a look-up per scope, so memory is bounded."""
    # Users have names, so this is before the first of the tenant.
    last = (tenant or "", "")
    while True:
        async with database.acquire() as connection:
            row = await connection.fetchrow(database.sql(_SCOPES), *last, tenant)
        if row is None:
            return
        last = (row["tenant"], row["user_id"])
        yield Scope(*last)


async def _window(
    connection: Connection, database: Database, scope: Scope, after: int, size: int
) -> tuple[list[Mapping[str, Any]], int | None]:
    rows: list[Mapping[str, Any]] = []
    held = 0
    async for row in connection.cursor(database.sql(_WINDOW), scope.tenant, scope.user, after, size, prefetch=200):
        rows.append(row)
        held += len(row["metadata"] or "")
        if held > METADATA_BYTES:
            return rows, row["id"]
    return rows, rows[-1]["id"] if len(rows) == size else None


async def _vectors(
    connection: Connection, database: Database, scope: Scope, memories: Mapping[int, Memory]
) -> dict[int, array[float]]:
    space = await connection.fetchrow(database.sql(_SPACE))
    if space is None or not memories:
        return {}
    hashes = list({one.text_hash for one in memories.values()})
    rows = await connection.fetch(database.sql(_VECTORS), scope.tenant, hashes, *space)
    stored = {bytes(row["text_hash"]): unpack(row["vector"]) for row in rows}
    return {one.id: stored[one.text_hash] for one in memories.values() if one.text_hash in stored}


async def _related(connection: Connection, database: Database, bare: Snapshot, chosen: list[int]) -> Snapshot:
    """The snapshot with what the chosen memories point to and what points to them."""
    if not chosen:
        return bare
    owner = (bare.scope.tenant, bare.scope.user)
    found = await connection.fetch(database.sql(_INCOMING), chosen, *owner, MAX_REFERRERS + 1)
    incoming: dict[int, frozenset[int] | None] = {
        row["id"]: frozenset(row["sources"]) if len(row["sources"]) <= MAX_REFERRERS else None for row in found
    }
    sources = {one for ids in incoming.values() if ids is not None for one in ids}
    relations: dict[int, set[Relation]] = {}
    for row in await connection.fetch(database.sql(_OUTGOING), sorted({*chosen, *sources}), *owner):
        relations.setdefault(row["source_id"], set()).add((row["type"], row["target_id"]))
    outside = sorted(sources - bare.memories.keys())
    rows = await connection.fetch(database.sql(_ROWS), *owner, outside) if outside else []
    referrers = {row["id"]: _memory(row, frozenset(relations.get(row["id"], ()))) for row in rows}
    memories = {
        one.id: replace(one, relations=frozenset(relations[one.id])) if one.id in relations else one
        for one in bare.memories.values()
    }
    return replace(bare, memories=memories, incoming=incoming, referrers=referrers)


async def _contents(connection: Connection, database: Database, scope: Scope, chosen: list[int]) -> dict[int, JSON]:
    contents: dict[int, JSON] = {}
    held = 0
    arguments = (scope.tenant, scope.user, chosen)
    async for row in connection.cursor(database.sql(_CONTENTS), *arguments, prefetch=20):
        contents[row["id"]] = stored_content(row["content"], row["document"])
        held += len(row["content"])
        if held > CONTENT_BYTES:
            break
    return contents


def _memory(row: Mapping[str, Any], relations: frozenset[Relation]) -> Memory:
    return Memory(
        id=row["id"],
        version=row["version"],
        text_hash=bytes(row["text_hash"]),
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        key=row["key"],
        is_document=row["is_document"],
        metadata=None if row["metadata"] is None else json.loads(row["metadata"]),
        importance=row["importance"],
        category=row["category"],
        slot_hint=row["slot_hint"],
        expires_at=row["expires_at"],
        relations=relations,
    )
