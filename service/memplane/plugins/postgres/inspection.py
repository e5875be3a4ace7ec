"""Everything PostgreSQL knows about one memory, for operators: tombstones, edges and events included."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from memplane.contracts import JSON
from memplane.schema.database import Database
from memplane.schema.ids import parse_id
from memplane.schema.times import format_time

MAX_EVENTS: Final = 200
"""Newest outbox events shown."""
MAX_EDGES: Final = 1000

_MEMORY: Final = """
SELECT m.id, m.tenant, m.user_id, m.key, m.metadata, m.importance, m.category, m.tags, m.slot_hint, m.expires_at,
       m.embedding_model, m.embedding_revision, m.version, m.edges_version, m.content_hash,
       encode(m.text_hash, 'hex') AS text_hash, octet_length(m.content) AS content_bytes, m.created_at, m.updated_at,
       m.deleted_at, m.superseded_by, m.changed_xid::text AS changed_xid
FROM {schema}.long_term_memory AS m WHERE m.id = $1 AND ($2::text IS NULL OR m.tenant = $2)
"""
_EDGES: Final = """
SELECT e.source_id, e.type, e.target_id, e.version, e.relation_hash, e.created_at, e.updated_at, e.deleted_at
FROM {schema}.memory_edge AS e
WHERE (e.source_id = $1 OR e.target_id = $1) AND ($2::text IS NULL OR e.tenant = $2)
ORDER BY e.source_id, e.type, e.target_id LIMIT $3
"""
_EVENTS: Final = """
SELECT o.id, o.event_id, o.aggregate_version, o.event_type, o.family, o.target, o.status, o.attempts, o.available_at,
       o.locked_until, o.locked_by, o.superseded_by, o.repair_key, o.processed_at, o.last_error, o.created_at
FROM {schema}.memory_outbox AS o
WHERE o.aggregate_id = $1 AND ($2::text IS NULL OR o.tenant = $2) ORDER BY o.id DESC LIMIT $3
"""


async def memory_state(database: Database, tenant: str | None, public_id: str) -> dict[str, JSON] | None:
    """Row, edges and newest events of one memory as JSON; None when the tenant has no such row.

    The content itself is left out: operators see hashes and sizes. `tenant` None sees every tenant's.
    """
    memory_id = parse_id(public_id)
    if memory_id is None:
        return None
    async with database.acquire() as connection:
        row = await connection.fetchrow(database.sql(_MEMORY), memory_id, tenant)
        if row is None:
            return None
        edges = await connection.fetch(database.sql(_EDGES), memory_id, tenant, MAX_EDGES)
        events = await connection.fetch(database.sql(_EVENTS), memory_id, tenant, MAX_EVENTS)
    memory = _document(row)
    memory["metadata"] = None if row["metadata"] is None else json.loads(row["metadata"])
    return {
        "memory": memory,
        "edges": [_document(edge) for edge in edges],
        "events": [_document(event) for event in events],
    }


def _document(row: Mapping[str, Any]) -> dict[str, JSON]:
    return {name: _plain(name, value) for name, value in dict(row).items()}


def _plain(name: str, value: object) -> JSON:
    if isinstance(value, datetime):
        return format_time(value)
    if isinstance(value, UUID):
        return str(value)
    # Ids are strings on the wire: JavaScript readers lose digits of large integers.
    if isinstance(value, int) and (name in ("id", "superseded_by") or name.endswith("_id")):
        return str(value)
    return value
