"""The present truth of the memories that a batch of events names, read right before the call to the target.

One statement, so that a memory and its edges come from one snapshot. Only columns that the target reads are fetched.
Source: seed `002` section 5.3; design section 6.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from memplane.outbox.events import TEXT_CHARACTERS, Edge, Event, Family, Needs, Truth
from memplane.schema.database import Database

_LIVE = "m.deleted_at IS NULL AND (m.expires_at IS NULL OR m.expires_at > statement_timestamp())"
_BASE = f"m.id, ({_LIVE}), m.version, m.tenant, m.user_id, m.content_hash, m.edges_version"
_FIELDS = ", m.importance, m.category, m.tags, m.slot_hint, m.expires_at"
_METADATA = ", m.metadata"
_TEXT = f", left(m.content, {TEXT_CHARACTERS}) AS content, m.text_hash"
_FROM = " FROM {schema}.long_term_memory AS m"
_WHERE = " WHERE m.id = ANY ($1::bigint[])"
_EDGES = ", e.targets, e.types, e.versions, e.hashes"
_EDGES_FROM = """
LEFT JOIN LATERAL (
    SELECT array_agg(target_id) AS targets, array_agg(type) AS types,
           array_agg(version) AS versions, array_agg(relation_hash) AS hashes
    FROM {schema}.memory_edge
    WHERE source_id = m.id AND deleted_at IS NULL AND m.id = ANY ($2::bigint[])) AS e ON TRUE
"""


def _statement(needs: Needs, *, edges: bool) -> str:
    columns = _BASE
    if needs.fields:
        columns += _FIELDS
    if needs.metadata:
        columns += _METADATA
    if needs.text:
        columns += _TEXT
    if edges:
        return f"SELECT {columns}{_EDGES}{_FROM}{_EDGES_FROM}{_WHERE}"
    return f"SELECT {columns}{_FROM}{_WHERE}"


async def read_truths(database: Database, events: Sequence[Event], needs: Needs) -> dict[int, Truth]:
    """The truth for each event, by event id. A memory without a row is not live and has version 0.

    `edges` is filled for events of family edges: the live outgoing relations, none when the memory is not live.
    """
    memory_ids = list({event.memory_id for event in events})
    sources = list({event.memory_id for event in events if event.family is Family.EDGES})
    statement = database.sql(_statement(needs, edges=bool(sources)))
    arguments = (memory_ids, sources) if sources else (memory_ids,)
    async with database.acquire() as connection:
        rows = await connection.fetch(statement, *arguments)
    by_memory = {row[0]: row for row in rows}
    bare = not (needs.fields or needs.metadata or needs.text or sources)
    truths: dict[int, Truth] = {}
    for event in events:
        row = by_memory.get(event.memory_id)
        if row is None:
            truths[event.id] = _absent(event)
        elif bare:
            truths[event.id] = Truth(row[0], row[1], row[2], row[3], row[4], row[5], edges_version=row[6])
        else:
            truths[event.id] = _truth(row, event, needs)
    return truths


def _absent(event: Event) -> Truth:
    return Truth(
        event.memory_id,
        live=False,
        version=0,
        tenant=event.tenant,
        user_id=event.user_id,
        edges=() if event.family is Family.EDGES else None,
    )


def _truth(row: Mapping[str, Any], event: Event, needs: Needs) -> Truth:
    memory_id, live, version, tenant, user_id, content_hash, edges_version = row[:7]  # type: ignore[index]
    optional: dict[str, Any] = {}
    if needs.fields:
        for name in ("importance", "category", "tags", "slot_hint", "expires_at"):
            optional[name] = row[name]
    if needs.metadata:
        optional["metadata"] = _json(row["metadata"])
    if needs.text:
        optional["text"], optional["text_hash"] = row["content"], row["text_hash"]
    if event.family is Family.EDGES:
        optional["edges"] = _edges(row) if live else ()
    return Truth(memory_id, live, version, tenant, user_id, content_hash, edges_version=edges_version, **optional)


def _json(value: object) -> Mapping[str, Any] | None:
    # A pool may have a JSON codec of its own.
    decoded: Mapping[str, Any] | None = json.loads(value) if isinstance(value, str) else value  # type: ignore[assignment]
    return decoded


def _edges(row: Mapping[str, Any]) -> tuple[Edge, ...]:
    if row["targets"] is None:
        return ()
    ends = zip(row["targets"], row["types"], row["versions"], row["hashes"], strict=True)
    return tuple(Edge(row["id"], target, kind, version, digest) for target, kind, version, digest in sorted(ends))
