"""UPDATE: change contents and metadata of existing memories, in one transaction.

The rows and the targets of new relations are locked first, in one order; then each entry is checked against the locked
row (present, expected version), and all are stored together. Without `expectedVersion` the last writer wins.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from memplane.contracts import JSON, MemoryItem, Scope
from memplane.outbox.enqueue import Change
from memplane.plugins.postgres.calls import changing
from memplane.plugins.postgres.documents import stored_content
from memplane.plugins.postgres.edges import EdgeState, changed_edges, outgoing, store_edges
from memplane.plugins.postgres.hashes import Hashed, content_hash
from memplane.plugins.postgres.locks import live_ids, lock_and_read
from memplane.plugins.postgres.reserved import Reserved
from memplane.plugins.postgres.rows import Row
from memplane.plugins.postgres.tokens import TOKENIZER_VERSION, search_tokens
from memplane.plugins.postgres.write import array_literal
from memplane.plugins.postgres.writing import Writing
from memplane.plugins.records.batches import Entry, check_present, check_targets, prepare_entries
from memplane.schema.canonical import canonical
from memplane.schema.committed import Committed
from memplane.schema.database import Connection
from memplane.schema.times import format_time
from memplane.signal import Signal

_COLUMNS: Final = """
m.id, m.key, m.content, m.document, m.metadata, m.importance, m.category, m.tags, m.slot_hint, m.expires_at, m.version,
m.edges_version, m.text_hash, m.created_at,
m.deleted_at IS NULL AND (m.expires_at IS NULL OR m.expires_at > clock_timestamp()) AS live
"""
_UPDATE: Final = """
UPDATE {schema}.long_term_memory AS m
SET content = CASE WHEN r.new_content THEN r.content ELSE m.content END,
    document = CASE WHEN r.new_content THEN r.document::jsonb ELSE m.document END,
    text_hash = CASE WHEN r.new_content THEN r.text_hash ELSE m.text_hash END,
    search_tokens = CASE WHEN r.new_content THEN r.tokens::tsvector ELSE m.search_tokens END,
    tokens_version = CASE WHEN r.new_content THEN $5 ELSE m.tokens_version END,
    embedding_model = CASE WHEN r.new_content THEN $3 ELSE m.embedding_model END,
    embedding_revision = CASE WHEN r.new_content THEN $4 ELSE m.embedding_revision END,
    metadata = CASE WHEN r.new_metadata THEN r.metadata::jsonb ELSE m.metadata END,
    importance = r.importance, category = r.category, tags = r.tags::text[], slot_hint = r.slot_hint,
    expires_at = r.expires_at, version = r.version, edges_version = r.edges_version, content_hash = r.content_hash,
    updated_at = greatest(clock_timestamp(), m.updated_at), changed_xid = pg_current_xact_id()
FROM unnest($6::bigint[], $7::boolean[], $8::text[], $9::text[], $10::bytea[], $11::text[], $12::boolean[],
            $13::text[], $14::float8[], $15::text[], $16::text[], $17::text[], $18::timestamptz[], $19::bigint[],
            $20::bigint[], $21::text[])
     AS r (id, new_content, content, document, text_hash, tokens, new_metadata, metadata, importance, category, tags,
           slot_hint, expires_at, version, edges_version, content_hash)
WHERE m.tenant = $1 AND m.user_id = $2 AND m.id = r.id
RETURNING m.id, m.updated_at
"""


@dataclass(frozen=True, slots=True)
class Revision:
    """The next version of a locked row."""

    entry: Entry
    row: Row
    reserved: Reserved
    edges: list[EdgeState]
    content_hash: str

    @property
    def memory_id(self) -> int:
        return int(self.row["id"])

    @property
    def version(self) -> int:
        return int(self.row["version"]) + 1

    @property
    def edges_version(self) -> int:
        return int(self.row["edges_version"]) + bool(self.edges)


async def update(
    writing: Writing, scope: Scope, memories: Sequence[Mapping[str, JSON]], signal: Signal | None
) -> list[MemoryItem]:
    """Apply all entries or none; returns the full memories in the order of the entries.

    Raises NOT_FOUND or CONFLICT naming the id.
    """
    entries = prepare_entries(memories, require_expected_version=writing.require_expected_version)
    if not entries:
        return []

    async def run(connection: Connection) -> list[Committed]:
        changes, committed = await revise(connection, writing, scope, entries)
        await writing.enqueue(connection, changes)
        return committed

    committed = await changing(writing.database, signal, run)
    writing.committed(committed)
    return [entry.item for entry in committed if entry.item is not None]


async def revise(
    connection: Connection, writing: Writing, scope: Scope, entries: Sequence[Entry]
) -> tuple[list[Change], list[Committed]]:
    """Lock, check and store the next versions; the caller enqueues the changes in the same transaction.

    Raises NOT_FOUND or CONFLICT naming the id, INVALID_INPUT for a relation that leads nowhere.
    """
    database = writing.database
    targets = {r.target for entry in entries if entry.metadata for r in entry.metadata.reserved.relations}
    wanted = {target for target in targets if target is not None}
    ids = {entry.memory_id for entry in entries if entry.memory_id is not None}
    rows = await lock_and_read(connection, database, scope, change=ids, share=wanted, columns=_COLUMNS)
    for entry in entries:
        _check_row(entry, rows)
    live = await live_ids(connection, database, scope, wanted) if wanted else set()
    for entry in entries:
        if entry.metadata is not None:
            check_targets(entry.metadata.reserved, live, f"memories[{entry.index}]", itself=entry.memory_id)
    with_edges = [
        e.memory_id
        for e in entries
        if e.metadata and e.memory_id is not None and rows[e.memory_id]["edges_version"] > 0
    ]
    held = await outgoing(connection, database, scope, with_edges) if with_edges else {}
    revisions = [
        _revise(scope, entry, rows[entry.memory_id or 0], held.get(entry.memory_id or 0, set())) for entry in entries
    ]
    times = await _store(connection, writing, scope, revisions)
    await store_edges(connection, database, [edge for revision in revisions for edge in revision.edges])
    return (
        [_change(scope, revision) for revision in revisions],
        [_committed(scope, revision, times[revision.memory_id]) for revision in revisions],
    )


def _check_row(entry: Entry, rows: Mapping[int, Row]) -> None:
    row = None if entry.memory_id is None else rows.get(entry.memory_id)
    check_present(entry, row["version"] if row is not None and row["live"] else None)


def _revise(scope: Scope, entry: Entry, row: Row, held: set[tuple[str, int]]) -> Revision:
    """The next version of a row. Pure."""
    metadata: str | None
    if entry.metadata is not None:
        reserved, metadata = entry.metadata.reserved, entry.metadata.text
        wanted = [(r.type, r.target) for r in reserved.relations if r.target is not None]
        edges = changed_edges(scope, row["id"], row["edges_version"] + 1, held, wanted)
    else:
        reserved = Reserved(row["importance"], row["category"], row["tags"], row["slot_hint"], row["expires_at"])
        metadata = None if row["metadata"] is None else canonical(json.loads(row["metadata"]))
        edges = []
    content = entry.content
    hashed = Hashed(
        row["id"],
        scope.tenant,
        scope.user,
        row["key"],
        row["text_hash"] if content is None else content.text_hash,
        (row["document"] if content is None else content.document) is not None,
        metadata,
        reserved.importance,
        reserved.category,
        reserved.tags,
        reserved.slot_hint,
        reserved.expires_at,
        row["version"] + 1,
    )
    return Revision(entry, row, reserved, edges, content_hash(hashed))


async def _store(
    connection: Connection, writing: Writing, scope: Scope, revisions: Sequence[Revision]
) -> dict[int, datetime]:
    contents = [revision.entry.content for revision in revisions]
    metadata = [revision.entry.metadata for revision in revisions]
    reserved = [revision.reserved for revision in revisions]
    rows = await connection.fetch(
        writing.database.sql(_UPDATE),
        scope.tenant,
        scope.user,
        *(writing.embedding or (None, None)),
        TOKENIZER_VERSION,
        [revision.memory_id for revision in revisions],
        [content is not None for content in contents],
        [None if content is None else content.text for content in contents],
        [None if content is None else content.document for content in contents],
        [None if content is None else content.text_hash for content in contents],
        [None if content is None else search_tokens(scope.tenant, scope.user, content.text) for content in contents],
        [document is not None for document in metadata],
        [None if document is None else document.text for document in metadata],
        [fields.importance for fields in reserved],
        [fields.category for fields in reserved],
        [array_literal(fields.tags) for fields in reserved],
        [fields.slot_hint for fields in reserved],
        [fields.expires_at for fields in reserved],
        [revision.version for revision in revisions],
        [revision.edges_version for revision in revisions],
        [revision.content_hash for revision in revisions],
    )
    return {row["id"]: row["updated_at"] for row in rows}


def _change(scope: Scope, revision: Revision) -> Change:
    return Change(
        memory_id=revision.memory_id,
        tenant=scope.tenant,
        user_id=scope.user,
        version=revision.version,
        content_hash=revision.content_hash,
        operation="upsert",
        edges=bool(revision.edges),
        edges_version=revision.edges_version,
    )


def _committed(scope: Scope, revision: Revision, updated_at: datetime) -> Committed:
    row, entry = revision.row, revision.entry
    item = MemoryItem(
        id=str(row["id"]),
        content=stored_content(row["content"], row["document"]) if entry.content is None else entry.content.value,
        version=revision.version,
        createdAt=format_time(row["created_at"]),
        updatedAt=format_time(updated_at),
    )
    if row["key"] is not None:
        item["key"] = row["key"]
    if entry.metadata is not None:
        item["metadata"] = entry.metadata.value
    elif row["metadata"] is not None:
        item["metadata"] = json.loads(row["metadata"])
    return Committed(revision.memory_id, scope.tenant, scope.user, revision.version, item, revision.reserved.expires_at)
