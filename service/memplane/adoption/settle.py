"""The bounded job behind the trigger: hashes what the old application wrote, and enqueues its events.

A marked row (`content_hash = ''`) gets its hash and lexemes, a deleted one is taken from `adoption_deleted`; the events
go into the outbox in the same transaction, so every captured change is projected once at least, and never without its
hash. Waits for locks end before PostgreSQL looks for deadlocks, so it is never the old application that has to yield.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Final

import asyncpg

from memplane.adoption.hashing import HASHED_COLUMNS, Row, hash_of
from memplane.outbox.enqueue import Change, enqueue
from memplane.outbox.events import Target
from memplane.outbox.locks import lock_memories
from memplane.plugins.postgres.calls import StartOver, changing
from memplane.plugins.postgres.edges import incoming_sources, store_edges, touching_edges
from memplane.plugins.postgres.locks import lock_and_read
from memplane.plugins.postgres.tokens import TOKENIZER_VERSION, search_tokens
from memplane.schema.database import Connection, Database

BATCH: Final = 200
"""Changes per transaction: their contents are held in memory."""

_PATIENCE: Final = "SELECT set_config('lock_timeout', '200ms', TRUE)"
"""Well below deadlock_timeout (1 s unless it was changed)."""

_MARKED: Final = f"""
SELECT m.id, m.version, m.edges_version, m.content, m.text_hash, m.document IS NOT NULL AS is_document,
       {", ".join(f"m.{name}" for name in HASHED_COLUMNS)}
FROM {{schema}}.long_term_memory AS m WHERE m.content_hash = '' AND m.text_hash <> ''
ORDER BY m.id LIMIT $1 FOR UPDATE SKIP LOCKED
"""
_HASH: Final = """
UPDATE {schema}.long_term_memory AS m
SET content_hash = r.content_hash, text_hash = r.text_hash, search_tokens = r.tokens::tsvector, tokens_version = $1,
    changed_xid = pg_current_xact_id()
FROM unnest($2::bigint[], $3::text[], $4::bytea[], $5::text[]) AS r (id, content_hash, text_hash, tokens)
WHERE m.id = r.id
"""
_DELETED: Final = """
SELECT id, tenant, user_id, version, edges_version, '' AS content_hash FROM {schema}.adoption_deleted
WHERE settled_at IS NULL ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED
"""
_SETTLED: Final = "UPDATE {schema}.adoption_deleted SET settled_at = now() WHERE id = ANY ($1::bigint[])"
_COUNT_EDGES: Final = """
UPDATE {schema}.long_term_memory AS m SET edges_version = r.edges_version, changed_xid = pg_current_xact_id()
FROM unnest($1::bigint[], $2::bigint[]) AS r (id, edges_version) WHERE m.id = r.id
"""
_CAPTURED: Final = "UPDATE {schema}.adoption SET captured_at = clock_timestamp()"
_PENDING: Final = """
SELECT (SELECT count(*) FROM {schema}.long_term_memory WHERE content_hash = '')
     + (SELECT count(*) FROM {schema}.adoption_deleted WHERE settled_at IS NULL)
"""
_ACTIVE: Final = "SELECT stage = 'adopted' FROM {schema}.adoption"


_Batch = Callable[[Connection, Database, int], Awaitable[tuple[int, list[Change]]]]


@dataclass(frozen=True, slots=True)
class _Dead:
    """A memory that the old application deleted, its row there or not. `version` is that of the delete."""

    memory_id: int
    tenant: str
    user_id: str
    version: int
    edges_version: int
    content_hash: str


async def active(database: Database) -> bool:
    """Whether an old application is still watched."""
    async with database.acquire() as connection:
        try:
            return bool(await connection.fetchval(database.sql(_ACTIVE)))
        except asyncpg.UndefinedTableError:
            return False


async def pending(connection: Connection, database: Database) -> int:
    """Captured changes that wait to be hashed."""
    return int(await connection.fetchval(database.sql(_PENDING)))


async def settle(database: Database, *, targets: Collection[Target], limit: int = BATCH) -> int:
    """One batch of changed rows and one of deleted ones; returns how many changes were settled.

    0 does not prove that nothing waits: rows that somebody has locked are left for the next call.
    """
    settled = 0
    for batch in (_settle_marked, _settle_deleted):

        async def work(connection: Connection, batch: _Batch = batch) -> int:
            await connection.execute(_PATIENCE)
            count, changes = await batch(connection, database, limit)
            await enqueue(connection, database, changes, targets=targets)
            if count:
                await connection.execute(database.sql(_CAPTURED))
            return count

        try:
            settled += await changing(database, None, work)
        except asyncpg.LockNotAvailableError:
            continue
    return settled


async def _settle_marked(connection: Connection, database: Database, limit: int) -> tuple[int, list[Change]]:
    rows = await connection.fetch(database.sql(_MARKED), limit)
    if not rows:
        return 0, []
    text_hashes = [sha256(row["content"].encode()).digest() for row in rows]
    hashes = [
        hash_of(row, text_hash, is_document=row["is_document"])
        for row, text_hash in zip(rows, text_hashes, strict=True)
    ]
    await connection.execute(
        database.sql(_HASH),
        TOKENIZER_VERSION,
        [row["id"] for row in rows],
        hashes,
        text_hashes,
        [search_tokens(row["tenant"], row["user_id"], row["content"]) for row in rows],
    )
    changes = [_upsert(row, digest) for row, digest in zip(rows, hashes, strict=True) if row["deleted_at"] is None]
    dead = [_dead(row, digest) for row, digest in zip(rows, hashes, strict=True) if row["deleted_at"] is not None]
    return len(rows), changes + await _bury(connection, database, dead)


async def _settle_deleted(connection: Connection, database: Database, limit: int) -> tuple[int, list[Change]]:
    rows = await connection.fetch(database.sql(_DELETED), limit)
    if not rows:
        return 0, []
    ids = [row["id"] for row in rows]
    await lock_memories(connection, database, ids)
    await connection.execute(database.sql(_SETTLED), ids)
    return len(rows), await _bury(connection, database, [_dead(row, "") for row in rows])


async def _bury(connection: Connection, database: Database, dead: Iterable[_Dead]) -> list[Change]:
    """Remove the edges of dead memories, each as a versioned change of its source; returns all changes."""
    by_id = {one.memory_id: one for one in dead}
    if not by_id:
        return []
    sources = await incoming_sources(connection, database, None, by_id) - by_id.keys()
    columns = "m.id, m.tenant, m.user_id, m.version, m.edges_version, m.content_hash"
    living = await lock_and_read(connection, database, None, change=sources, columns=columns) if sources else {}
    edges = await touching_edges(connection, database, None, by_id)
    touched = {edge.source_id for edge in edges}
    if touched - by_id.keys() - living.keys():
        raise StartOver
    versions = {source: _edges_version(source, by_id, living) + 1 for source in touched}
    await store_edges(connection, database, [replace(edge, version=versions[edge.source_id]) for edge in edges])
    if versions:
        await connection.execute(database.sql(_COUNT_EDGES), list(versions), list(versions.values()))
    return [
        *(_delete(one, versions.get(one.memory_id)) for one in by_id.values()),
        *(_lost_edges(living[source], versions[source]) for source in sorted(touched - by_id.keys())),
    ]


def _edges_version(source: int, dead: Mapping[int, _Dead], living: Mapping[int, Row]) -> int:
    return dead[source].edges_version if source in dead else int(living[source]["edges_version"])


def _dead(row: Row, digest: str) -> _Dead:
    return _Dead(row["id"], row["tenant"], row["user_id"], row["version"], row["edges_version"], digest)


def _upsert(row: Row, digest: str) -> Change:
    return Change(row["id"], row["tenant"], row["user_id"], row["version"], digest, "upsert")


def _delete(one: _Dead, edges_version: int | None) -> Change:
    return Change(
        one.memory_id,
        one.tenant,
        one.user_id,
        one.version,
        one.content_hash,
        "delete",
        edges=edges_version is not None,
        edges_version=one.edges_version if edges_version is None else edges_version,
    )


def _lost_edges(row: Row, edges_version: int) -> Change:
    return Change(
        row["id"],
        row["tenant"],
        row["user_id"],
        row["version"],
        row["content_hash"],
        "upsert",
        node=False,
        edges=True,
        edges_version=edges_version,
    )
