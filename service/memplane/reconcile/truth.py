"""The truth's side of a comparison: live memories in id order, and the standing of single candidates.

A scan gets rows as the driver gives them, since it looks at a million of them; `truth_of` makes a `Truth` of one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from memplane.outbox.events import Edge, Needs, Target, Truth
from memplane.schema.database import Database

_EXPIRED = "COALESCE(m.expires_at <= statement_timestamp(), FALSE)"

_FIELDS = (
    "m.version, m.tenant, m.user_id, m.content_hash, m.importance, m.category, m.tags, m.slot_hint, m.expires_at,"
    " m.edges_version"
)


def _columns(needs: Needs) -> str:
    return _FIELDS + (", m.metadata" if needs.metadata else "")


@dataclass(frozen=True, slots=True)
class Vectors:
    """Whose stored embeddings belong to the truth: what the target should hold as vectors."""

    model: str
    revision: str
    dimensions: int


Row: TypeAlias = Mapping[str, Any]
"""A live memory as the driver gives it: the columns of `_FIELDS`, `metadata` if needed, and `vector`: the SHA-256 of
its stored embedding, None when there is none or vectors are not compared."""

# A probe per memory, whatever the statistics say: a page must never read the whole table of embeddings.
_VECTOR = """
LEFT JOIN LATERAL (
    SELECT sha256(e.vector) AS vector FROM {schema}.memory_embedding AS e
    WHERE e.tenant = m.tenant AND e.text_hash = m.text_hash AND e.model = $3 AND e.revision = $4 AND e.dimensions = $5
    LIMIT 1) AS v ON TRUE
"""


def _rows_statement(needs: Needs, where: str, tail: str, *, vectors: bool) -> str:
    return f"""
SELECT m.id, {_columns(needs)}, {"v.vector" if vectors else "NULL::bytea AS vector"}
FROM {{schema}}.long_term_memory AS m
{_VECTOR if vectors else ""}
WHERE {where} AND m.deleted_at IS NULL AND NOT {_EXPIRED}
ORDER BY m.id {tail}
"""


def _edges_statement(where: str) -> str:
    return f"""
SELECT e.source_id, e.target_id, e.type, e.version, e.relation_hash
FROM {{schema}}.memory_edge AS e JOIN {{schema}}.long_term_memory AS m ON m.id = e.source_id
WHERE {where} AND e.deleted_at IS NULL AND m.deleted_at IS NULL AND NOT {_EXPIRED}
"""


def _unfinished(condition: str) -> str:
    return (
        "EXISTS (SELECT FROM {schema}.memory_outbox AS o"
        f" WHERE o.target = $2 AND o.aggregate_id = w.id AND {condition})"
    )


_BUSY = " OR ".join(
    # Each in the form that a partial unique index of the outbox answers.
    _unfinished(condition)
    for condition in (
        "o.family = 'node' AND o.status = 'pending'",
        "o.family = 'edges' AND o.status = 'pending'",
        "o.status = 'processing'",
    )
)


def _standing_statement(needs: Needs) -> str:
    """One statement, so that a memory and its unfinished events come from one snapshot."""
    return f"""
SELECT w.id, m.id IS NOT NULL AS present, m.deleted_at IS NOT NULL AS deleted, {_EXPIRED} AS expired,
       {_columns(needs)}, {_BUSY} OR COALESCE(m.content_hash = '', FALSE) AS busy, m.changed_xid::text AS changed_xid
FROM unnest($1::bigint[]) AS w (id) LEFT JOIN {{schema}}.long_term_memory AS m ON m.id = w.id
"""


# Counting a large table takes longer than a statement may; its statistics are good enough for a progress bar.
_ESTIMATE = """
SELECT CASE WHEN c.reltuples > 500000 THEN c.reltuples::bigint
            ELSE (SELECT count(*) FROM {schema}.long_term_memory WHERE deleted_at IS NULL) END
FROM pg_class AS c WHERE c.oid = $1::text::regclass
"""

_EMBEDDINGS = """
SELECT m.id, e.vector FROM {schema}.long_term_memory AS m
JOIN {schema}.memory_embedding AS e
  ON e.tenant = m.tenant AND e.text_hash = m.text_hash AND e.model = $2 AND e.revision = $3 AND e.dimensions = $4
WHERE m.id = ANY ($1::bigint[])
"""

LAST_ID = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Standing:
    """One candidate in the truth. `busy`: an event of it waits or is in flight, so a difference is no drift yet."""

    truth: Truth
    expired: bool
    busy: bool
    changed_xid: int | None = None
    """Transaction of the last change; None without a row."""

    def same(self, other: Standing) -> bool:
        """Whether nothing happened to the memory between two looks."""
        return (self.truth.live, self.truth.version, self.truth.edges_version, self.expired, self.busy) == (
            other.truth.live,
            other.truth.version,
            other.truth.edges_version,
            other.expired,
            other.busy,
        )


async def page(database: Database, needs: Needs, vectors: Vectors | None, after: int, limit: int) -> Sequence[Row]:
    """The next `limit` live memories with an id above `after`, in id order; without text."""
    statement = _rows_statement(needs, "m.id > $1", "LIMIT $2", vectors=vectors is not None)
    return await _rows(database, statement, vectors, after, limit)


async def among(database: Database, needs: Needs, vectors: Vectors | None, memory_ids: Sequence[int]) -> Sequence[Row]:
    """The live ones of these memories, in id order; without text."""
    statement = _rows_statement(needs, "m.id = ANY ($1::bigint[])", "LIMIT $2", vectors=vectors is not None)
    return await _rows(database, statement, vectors, list(memory_ids), len(memory_ids))


async def _rows(database: Database, statement: str, vectors: Vectors | None, *arguments: object) -> Sequence[Row]:
    space = () if vectors is None else (vectors.model, vectors.revision, vectors.dimensions)
    async with database.acquire() as connection:
        rows: Sequence[Row] = await connection.fetch(database.sql(statement), *arguments, *space)
    return rows


async def embeddings_of(database: Database, vectors: Vectors, memory_ids: Sequence[int]) -> dict[int, bytes]:
    """The stored embeddings of these memories, as little-endian float32 values; those without one are left out."""
    async with database.acquire() as connection:
        rows = await connection.fetch(
            database.sql(_EMBEDDINGS), list(memory_ids), vectors.model, vectors.revision, vectors.dimensions
        )
    return {row["id"]: row["vector"] for row in rows}


async def edges_between(database: Database, low: int, high: int) -> dict[int, list[Edge]]:
    """The live edges of live sources with low < id <= high, by source."""
    async with database.acquire() as connection:
        rows = await connection.fetch(
            database.sql(_edges_statement("e.source_id > $1 AND e.source_id <= $2")), low, high
        )
    return _by_source(rows)


async def edges_of(database: Database, sources: Sequence[int]) -> dict[int, list[Edge]]:
    """The live edges of these sources."""
    async with database.acquire() as connection:
        rows = await connection.fetch(database.sql(_edges_statement("e.source_id = ANY($1::bigint[])")), list(sources))
    return _by_source(rows)


async def standings(database: Database, needs: Needs, target: Target, memory_ids: Sequence[int]) -> dict[int, Standing]:
    """How each candidate stands in the truth right now. An id without a row is not live and has version 0."""
    async with database.acquire() as connection:
        rows = await connection.fetch(database.sql(_standing_statement(needs)), list(memory_ids), target.value)
    return {row["id"]: _standing(row, needs) for row in rows}


async def estimate(database: Database) -> int:
    """About how many memories there are."""
    async with database.acquire() as connection:
        table = f"{database.schema}.long_term_memory"
        return int(await connection.fetchval(database.sql(_ESTIMATE), table))


def _standing(row: Mapping[str, Any], needs: Needs) -> Standing:
    if not row["present"]:
        return Standing(Truth(row["id"], live=False, version=0), expired=False, busy=row["busy"])
    live = not row["deleted"] and not row["expired"]
    truth = truth_of(row, needs, live=live)
    return Standing(truth, row["expired"] and not row["deleted"], row["busy"], int(row["changed_xid"]))


def truth_of(row: Row, needs: Needs, *, live: bool = True) -> Truth:
    """A row as a `Truth`."""
    metadata = row["metadata"] if needs.metadata else None
    return Truth(
        row["id"],
        live,
        row["version"],
        tenant=row["tenant"],
        user_id=row["user_id"],
        content_hash=row["content_hash"],
        importance=row["importance"],
        category=row["category"],
        tags=row["tags"],
        slot_hint=row["slot_hint"],
        expires_at=row["expires_at"],
        metadata=json.loads(metadata) if isinstance(metadata, str) else metadata,
        edges_version=row["edges_version"],
    )


def _by_source(rows: Sequence[Mapping[str, Any]]) -> dict[int, list[Edge]]:
    found: dict[int, list[Edge]] = {}
    for row in rows:
        edge = Edge(row["source_id"], row["target_id"], row["type"], row["version"], row["relation_hash"])
        found.setdefault(edge.source_id, []).append(edge)
    return found
