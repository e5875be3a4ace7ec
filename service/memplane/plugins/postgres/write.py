"""WRITE: insert a batch of memories with their edges and events, in one transaction.

The common case is three statements (ids, rows, events). Keys are checked by the insert itself (ON CONFLICT DO NOTHING
on the partial unique index); only when a row does not get in does a second attempt look who holds the key. A live
holder is a CONFLICT, an expired one becomes a tombstone in the same transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeVar

from memplane.contracts import JSON, MemoryItem, Scope
from memplane.errors import PluginError
from memplane.outbox.enqueue import Change
from memplane.plugins.postgres.calls import StartOver, changing
from memplane.plugins.postgres.edges import EdgeState, changed_edges, store_edges
from memplane.plugins.postgres.hashes import Hashed, content_hash
from memplane.plugins.postgres.locks import live_ids, share_live_ids
from memplane.plugins.postgres.tokens import TOKENIZER_VERSION, search_tokens
from memplane.plugins.postgres.tombstones import bury, condemn
from memplane.plugins.postgres.writing import Writing, deleted
from memplane.plugins.records.batches import Draft, check_targets, prepare_drafts
from memplane.schema.committed import Committed
from memplane.schema.database import Connection, Database
from memplane.schema.ids import quoted
from memplane.schema.times import format_time
from memplane.signal import Signal

T = TypeVar("T")

_IDS: Final = """
SELECT now() AS now, ARRAY(SELECT nextval('{schema}.long_term_memory_id_seq') FROM generate_series(1, $1)) AS ids
"""
_INSERT: Final = """
INSERT INTO {schema}.long_term_memory
    (tenant, user_id, created_at, updated_at, embedding_model, embedding_revision, tokens_version, id, key, content,
     document, metadata, importance, category, tags, slot_hint, expires_at, edges_version, content_hash, text_hash,
     search_tokens)
SELECT $1, $2, $3, $3, $4, $5, $6, r.id, r.key, r.content, r.document::jsonb, r.metadata::jsonb, r.importance,
       r.category, r.tags::text[], r.slot_hint, r.expires_at, r.edges_version, r.content_hash, r.text_hash,
       r.tokens::tsvector
FROM unnest($7::bigint[], $8::text[], $9::text[], $10::text[], $11::text[], $12::float8[], $13::text[], $14::text[],
            $15::text[], $16::timestamptz[], $17::bigint[], $18::text[], $19::bytea[], $20::text[])
     AS r (id, key, content, document, metadata, importance, category, tags, slot_hint, expires_at, edges_version,
           content_hash, text_hash, tokens)
ON CONFLICT (tenant, user_id, key) WHERE deleted_at IS NULL AND key IS NOT NULL DO NOTHING
"""
_HOLDERS: Final = """
SELECT id, key, expires_at IS NOT NULL AND expires_at <= clock_timestamp() AS expired FROM {schema}.long_term_memory
WHERE tenant = $1 AND user_id = $2 AND key = ANY($3::text[]) AND deleted_at IS NULL
"""


@dataclass(frozen=True, slots=True)
class NewRow:
    """A draft with its id: what the insert takes."""

    memory_id: int
    draft: Draft
    content_hash: str

    @property
    def edges_version(self) -> int:
        return 1 if self.draft.reserved.relations else 0


async def write(
    writing: Writing, scope: Scope, memories: Sequence[Mapping[str, JSON]], signal: Signal | None
) -> list[MemoryItem]:
    """Write all drafts or none; returns the new memories in the order of the drafts."""
    drafts = prepare_drafts(memories)
    if not drafts:
        return []
    transaction = _WriteTransaction(writing, scope, drafts)
    items, dead = await changing(writing.database, signal, transaction.run)
    writing.committed(deleted(dead) + items)
    return [entry.item for entry in items if entry.item is not None]


class _WriteTransaction:
    """One batch; `run` may be called again after a rollback."""

    def __init__(self, writing: Writing, scope: Scope, drafts: Sequence[Draft]) -> None:
        self._writing = writing
        self._database: Database = writing.database
        self._scope = scope
        self._drafts = drafts
        self._keys = [draft.key for draft in drafts if draft.key is not None]
        self._key_taken = False

    async def run(self, connection: Connection) -> tuple[list[Committed], list[Change]]:
        dead = await self._before(connection)
        now, rows = await self._number(connection)
        inserted = await connection.execute(self._database.sql(_INSERT), *self._columns(rows, now))
        if int(inserted.rsplit(" ", 1)[-1]) != len(rows):
            self._key_taken = True
            raise StartOver
        await store_edges(connection, self._database, [edge for row in rows for edge in self._edges(row)])
        await self._writing.enqueue(connection, dead + [self._change(row) for row in rows])
        return [self._committed(row, now) for row in rows], dead

    async def _before(self, connection: Connection) -> list[Change]:
        """Lock the targets of relations and get expired holders of keys out of the way."""
        targets = {
            relation.target
            for draft in self._drafts
            for relation in draft.reserved.relations
            if relation.target is not None
        }
        changes: list[Change] = []
        if self._key_taken:
            holders = await self._expired_holders(connection)
            condemned = await condemn(
                connection,
                self._database,
                self._scope,
                holders,
                chosen=lambda row: row["expired"] is True,
                share=targets,
            )
            changes = await bury(connection, self._database, condemned)
            live = await live_ids(connection, self._database, self._scope, targets) if targets else set()
        else:
            live = await share_live_ids(connection, self._database, self._scope, targets) if targets else set()
        for index, draft in enumerate(self._drafts):
            check_targets(draft.reserved, live, f"memories[{index}]")
        return changes

    async def _expired_holders(self, connection: Connection) -> list[int]:
        rows = await connection.fetch(self._database.sql(_HOLDERS), self._scope.tenant, self._scope.user, self._keys)
        taken = {row["key"] for row in rows if not row["expired"]}
        for key in self._keys:
            if key in taken:
                raise PluginError("CONFLICT", f"Key {quoted(key)} is taken")
        return [row["id"] for row in rows]

    async def _number(self, connection: Connection) -> tuple[datetime, list[NewRow]]:
        """Draw the ids: the hash of a memory covers its id."""
        record = await connection.fetchrow(self._database.sql(_IDS), len(self._drafts))
        assert record is not None
        rows = [self._row(memory_id, draft) for memory_id, draft in zip(record["ids"], self._drafts, strict=True)]
        return record["now"], rows

    def _row(self, memory_id: int, draft: Draft) -> NewRow:
        reserved = draft.reserved
        hashed = Hashed(
            memory_id,
            self._scope.tenant,
            self._scope.user,
            draft.key,
            draft.content.text_hash,
            draft.content.document is not None,
            None if draft.metadata is None else draft.metadata.text,
            reserved.importance,
            reserved.category,
            reserved.tags,
            reserved.slot_hint,
            reserved.expires_at,
            1,
        )
        return NewRow(memory_id, draft, content_hash(hashed))

    def _columns(self, rows: Sequence[NewRow], now: datetime) -> tuple[object, ...]:
        """The arguments of the insert, sorted by key, so that batches meet each other's keys in one order."""
        if self._keys:
            rows = sorted(rows, key=lambda row: row.draft.key or "")
        drafts = [row.draft for row in rows]
        contents = [draft.content for draft in drafts]
        reserved = [draft.reserved for draft in drafts]
        tenant, user = self._scope.tenant, self._scope.user
        return (
            tenant,
            user,
            now,
            *(self._writing.embedding or (None, None)),
            TOKENIZER_VERSION,
            [row.memory_id for row in rows],
            sparse([draft.key for draft in drafts]),
            [content.text for content in contents],
            sparse([content.document for content in contents]),
            sparse([None if draft.metadata is None else draft.metadata.text for draft in drafts]),
            sparse([fields.importance for fields in reserved]),
            sparse([fields.category for fields in reserved]),
            sparse([array_literal(fields.tags) for fields in reserved]),
            sparse([fields.slot_hint for fields in reserved]),
            sparse([fields.expires_at for fields in reserved]),
            [row.edges_version for row in rows],
            [row.content_hash for row in rows],
            [content.text_hash for content in contents],
            [search_tokens(tenant, user, content.text) for content in contents],
        )

    def _edges(self, row: NewRow) -> list[EdgeState]:
        wanted = [(r.type, r.target) for r in row.draft.reserved.relations if r.target is not None]
        return changed_edges(self._scope, row.memory_id, 1, (), wanted)

    def _change(self, row: NewRow) -> Change:
        return Change(
            memory_id=row.memory_id,
            tenant=self._scope.tenant,
            user_id=self._scope.user,
            version=1,
            content_hash=row.content_hash,
            operation="upsert",
            edges=row.edges_version > 0,
            edges_version=row.edges_version,
            fresh=True,
        )

    def _committed(self, row: NewRow, now: datetime) -> Committed:
        time = format_time(now)
        draft = row.draft
        item = MemoryItem(id=str(row.memory_id), content=draft.content.value, version=1, createdAt=time, updatedAt=time)
        if draft.key is not None:
            item["key"] = draft.key
        if draft.metadata is not None:
            item["metadata"] = draft.metadata.value
        return Committed(row.memory_id, self._scope.tenant, self._scope.user, 1, item, draft.reserved.expires_at)


def sparse(column: list[T | None]) -> list[T | None] | None:
    """None for a column without any value: `unnest` fills it with NULLs, and nothing has to be sent."""
    return None if all(value is None for value in column) else column


def array_literal(strings: Sequence[str] | None) -> str | None:
    """A text[] as text: `unnest` flattens arrays of arrays, so tags travel in this form."""
    if strings is None:
        return None
    return "{" + ",".join('"' + s.replace("\\", "\\\\").replace('"', '\\"') + '"' for s in strings) + "}"
