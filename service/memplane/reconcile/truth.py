"""The truth's side of a comparison: pages of live memories in id order, and the standing of single candidates."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memplane.outbox.events import Edge, Needs, Target, Truth
from memplane.schema.database import Database

_EXPIRED = "COALESCE(m.expires_at <= statement_timestamp(), FALSE)"

_FIELDS = (
    "m.version, m.tenant, m.user_id, m.content_hash, m.importance, m.category, m.tags, m.slot_hint, m.expires_at,"
    " m.edges_version"
)


def _columns(needs: Needs) -> str:
    return _FIELDS + (", m.metadata" if needs.metadata else "")


def _page_statement(needs: Needs) -> str:
    return f"""
SELECT m.id, {_columns(needs)} FROM {{schema}}.long_term_memory AS m
WHERE m.id > $1 AND m.deleted_at IS NULL AND NOT {_EXPIRED}
ORDER BY m.id LIMIT $2
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
       {_columns(needs)}, {_BUSY} AS busy
FROM unnest($1::bigint[]) AS w (id) LEFT JOIN {{schema}}.long_term_memory AS m ON m.id = w.id
"""


_ESTIMATE = "SELECT count(*) FROM {schema}.long_term_memory WHERE deleted_at IS NULL"

FIRST_ID = -(2**62)
"""Below every id: the truth's begin at 1, but somebody's hand may have put others into a target."""

LAST_ID = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Standing:
    """One candidate in the truth. `busy`: an event of it waits or is in flight, so a difference is no drift yet."""

    truth: Truth
    expired: bool
    busy: bool

    def same(self, other: Standing) -> bool:
        """Whether nothing happened to the memory between two looks."""
        return (self.truth.live, self.truth.version, self.truth.edges_version, self.expired, self.busy) == (
            other.truth.live,
            other.truth.version,
            other.truth.edges_version,
            other.expired,
            other.busy,
        )


async def page(database: Database, needs: Needs, after: int, limit: int) -> list[Truth]:
    """The next `limit` live memories with an id above `after`, in id order; without text."""
    async with database.acquire() as connection:
        rows = await connection.fetch(database.sql(_page_statement(needs)), after, limit)
    return [_truth(row, needs, live=True) for row in rows]


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
        return int(await connection.fetchval(database.sql(_ESTIMATE)))


def _standing(row: Mapping[str, Any], needs: Needs) -> Standing:
    if not row["present"]:
        return Standing(Truth(row["id"], live=False, version=0), expired=False, busy=row["busy"])
    live = not row["deleted"] and not row["expired"]
    return Standing(_truth(row, needs, live=live), row["expired"] and not row["deleted"], row["busy"])


def _truth(row: Mapping[str, Any], needs: Needs, *, live: bool) -> Truth:
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
