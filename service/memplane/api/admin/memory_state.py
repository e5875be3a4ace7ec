"""State and history of one memory, read from PostgreSQL alone (design section 4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memplane.api.admin.models import MemoryState, OutboxEvent, ProjectionState
from memplane.schema.database import Connection, Database

HISTORY = 200

_MEMORY = """
SELECT id, tenant, user_id, version, edges_version, content_hash, created_at, updated_at, deleted_at, expires_at,
       superseded_by
FROM {schema}.long_term_memory
WHERE id = $1 AND ($2::text IS NULL OR tenant = $2)
"""

EVENT_COLUMNS = """
id, event_id, aggregate_id, tenant, user_id, aggregate_version, event_type, family, target, status, attempts,
available_at, created_at, processed_at, locked_by, locked_until, superseded_by, shadow, repair_key, last_error
"""

_SAME = (
    *("id", "event_id", "tenant", "user_id", "event_type", "family", "target", "status", "attempts", "available_at"),
    *("created_at", "processed_at", "locked_by", "locked_until", "superseded_by", "shadow", "last_error"),
)

_EVENTS = f"""
SELECT {EVENT_COLUMNS}
FROM {{schema}}.memory_outbox
WHERE aggregate_id = $1 AND ($2::text IS NULL OR tenant = $2)
ORDER BY id DESC
LIMIT {HISTORY}
"""

_PROJECTIONS = """
SELECT target, family,
       max(aggregate_version) FILTER (WHERE status = 'processed' AND superseded_by IS NULL AND NOT shadow) AS projected,
       count(*) FILTER (WHERE status IN ('pending', 'processing')) AS unfinished,
       count(*) FILTER (WHERE status = 'dead') AS dead
FROM {schema}.memory_outbox
WHERE aggregate_id = $1 AND ($2::text IS NULL OR tenant = $2)
GROUP BY target, family
ORDER BY target, family
"""


async def memory_state(database: Database, memory_id: int, tenant: str | None) -> MemoryState | None:
    """The state of a memory of this tenant (None: of any); None when neither the row nor an event is left."""
    async with database.acquire() as connection:
        row = await connection.fetchrow(database.sql(_MEMORY), memory_id, tenant)
        events = await connection.fetch(database.sql(_EVENTS), memory_id, tenant)
        if row is None and not events:
            return None
        projections = await _projections(connection, database, memory_id, tenant)
    owner = row or events[0]
    return MemoryState(
        memory_id=str(memory_id),
        tenant=owner["tenant"],
        user_id=owner["user_id"],
        exists=row is not None,
        projections=projections,
        history=[event_model(event) for event in events],
        **(_row_fields(row) if row is not None else {}),
    )


async def _projections(
    connection: Connection, database: Database, memory_id: int, tenant: str | None
) -> list[ProjectionState]:
    return [
        ProjectionState(
            target=row["target"],
            family=row["family"],
            projected_version=row["projected"],
            unfinished=row["unfinished"],
            dead=row["dead"],
        )
        for row in await connection.fetch(database.sql(_PROJECTIONS), memory_id, tenant)
    ]


def _row_fields(row: Mapping[str, Any]) -> dict[str, Any]:
    successor = row["superseded_by"]
    plain = ("version", "edges_version", "content_hash", "created_at", "updated_at", "deleted_at", "expires_at")
    return {name: row[name] for name in plain} | {"superseded_by": None if successor is None else str(successor)}


def event_model(row: Mapping[str, Any]) -> OutboxEvent:
    """An outbox row (`EVENT_COLUMNS`) as the API shows it."""
    return OutboxEvent(
        memory_id=str(row["aggregate_id"]),
        version=row["aggregate_version"],
        repair=row["repair_key"] is not None,
        **{name: row[name] for name in _SAME},
    )
