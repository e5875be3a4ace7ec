"""Outbox rows for the admin API and the CLI: listed in pages by id, newest first; a tenant sees its own."""

from __future__ import annotations

from collections.abc import Sequence

from memplane.api.admin.memory_state import EVENT_COLUMNS, event_model
from memplane.api.admin.models import OutboxEvent, OutboxPage
from memplane.schema.database import Database

_LIST = f"""
SELECT {EVENT_COLUMNS}
FROM {{schema}}.memory_outbox
WHERE ($1::text IS NULL OR tenant = $1)
  AND ($2::text IS NULL OR target = $2)
  AND ($3::text IS NULL OR status = $3)
  AND ($4::bigint IS NULL OR aggregate_id = $4)
  AND ($5::bigint IS NULL OR id < $5)
ORDER BY id DESC
LIMIT $6
"""

_ONE = f"""
SELECT {EVENT_COLUMNS}
FROM {{schema}}.memory_outbox
WHERE id = $1 AND ($2::text IS NULL OR tenant = $2)
"""

_VISIBLE = "SELECT id FROM {schema}.memory_outbox WHERE id = ANY($1::bigint[]) AND ($2::text IS NULL OR tenant = $2)"


async def list_events(
    database: Database,
    *,
    tenant: str | None = None,
    target: str | None = None,
    status: str | None = None,
    memory_id: int | None = None,
    after: int | None = None,
    limit: int = 100,
) -> OutboxPage:
    """Events, newest first. None leaves a condition out; `after` is the last id of the page before."""
    async with database.acquire() as connection:
        rows = await connection.fetch(database.sql(_LIST), tenant, target, status, memory_id, after, limit)
    more = rows[-1]["id"] if len(rows) == limit else None
    return OutboxPage(events=[event_model(row) for row in rows], next_after=more)


async def one_event(database: Database, event_id: int, *, tenant: str | None = None) -> OutboxEvent | None:
    """The event of this id, when that tenant may see it."""
    async with database.acquire() as connection:
        row = await connection.fetchrow(database.sql(_ONE), event_id, tenant)
    return None if row is None else event_model(row)


async def visible_ids(database: Database, ids: Sequence[int], *, tenant: str | None) -> list[int]:
    """Those of `ids` that exist and belong to the tenant."""
    async with database.acquire() as connection:
        return sorted(row["id"] for row in await connection.fetch(database.sql(_VISIBLE), list(ids), tenant))
