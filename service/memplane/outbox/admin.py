"""What an operator sees and does: list, inspect, replay, discard, and the backlog in figures (design 4 and 6.3).

Replay makes a dead event pending, so it holds the memory's lock and obeys the invariants of `outbox/claim.py`. Where a
newer event of the same (target, memory, family) is unfinished or done, or any is pending, the replayed one is ended
by it, because that one has projected, or will project, a truth at least as young.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal
from uuid import UUID

from memplane.outbox.channel import outbox_channel
from memplane.outbox.events import Target
from memplane.outbox.locks import lock_memories
from memplane.outbox.putback import Fate
from memplane.schema.database import Connection, Database

Status = Literal["pending", "processing", "processed", "dead"]

DISCARDED = "discarded by an operator"
"""`last_error` of a discarded event; it ends `processed` without having been projected."""


@dataclass(frozen=True, slots=True)
class EventRecord:
    """An outbox row as an operator sees it."""

    id: int
    event_id: UUID
    memory_id: int
    tenant: str
    user_id: str
    version: int
    event_type: str
    family: str
    target: str
    payload: Mapping[str, Any]
    status: str
    attempts: int
    available_at: datetime
    locked_at: datetime | None
    locked_until: datetime | None
    locked_by: str | None
    suspect: bool
    shadow: bool
    superseded_by: int | None
    repair_key: str | None
    traceparent: str | None
    processed_at: datetime | None
    last_error: str | None
    created_at: datetime


_RECORD = """
SELECT o.id, o.event_id, o.aggregate_id, o.tenant, o.user_id, o.aggregate_version, o.event_type, o.family, o.target,
       o.payload, o.status, o.attempts, o.available_at, o.locked_at, o.locked_until, o.locked_by, o.suspect, o.shadow,
       o.superseded_by, o.repair_key, o.traceparent, o.processed_at, o.last_error, o.created_at
FROM {schema}.memory_outbox AS o
"""


def _record(row: Sequence[Any]) -> EventRecord:
    values = list(row)
    payload = values[9]
    values[9] = json.loads(payload) if isinstance(payload, str) else payload
    return EventRecord(*values)


async def list_events(
    database: Database,
    *,
    target: Target | None = None,
    status: Status | None = None,
    tenant: str | None = None,
    user_id: str | None = None,
    memory_id: int | None = None,
    before: int | None = None,
    limit: int = 100,
) -> list[EventRecord]:
    """Events, newest first. The next page starts `before` the last id of this one."""
    conditions: list[str] = []
    arguments: list[object] = []
    for column, operator, value in (
        ("target", "=", target.value if target else None),
        ("status", "=", status),
        ("tenant", "=", tenant),
        ("user_id", "=", user_id),
        ("aggregate_id", "=", memory_id),
        ("id", "<", before),
    ):
        if value is not None:
            arguments.append(value)
            conditions.append(f"o.{column} {operator} ${len(arguments)}")
    where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    arguments.append(limit)
    statement = f"{_RECORD} {where} ORDER BY o.id DESC LIMIT ${len(arguments)}"
    async with database.acquire() as connection:
        rows = await connection.fetch(database.sql(statement), *arguments)
    return [_record(row) for row in rows]


async def inspect(database: Database, event: int | UUID, *, tenant: str | None = None) -> EventRecord | None:
    """One event by id or event_id; None when it does not exist, or not for this tenant."""
    column = "event_id" if isinstance(event, UUID) else "id"
    statement = f"{_RECORD} WHERE o.{column} = $1 AND ($2::text IS NULL OR o.tenant = $2)"
    async with database.acquire() as connection:
        row = await connection.fetchrow(database.sql(statement), event, tenant)
    return None if row is None else _record(row)


_DEAD = """
SELECT o.id, o.aggregate_id FROM {schema}.memory_outbox AS o
WHERE o.id = ANY ($1::bigint[]) AND o.status = 'dead' AND ($2::text IS NULL OR o.tenant = $2)
"""

_LOCK_DEAD = """
SELECT o.id FROM {schema}.memory_outbox AS o
WHERE o.id = ANY ($1::bigint[]) AND o.status = 'dead' ORDER BY o.id FOR UPDATE
"""

# Of several dead events of one (target, memory, family) the newest is replayed and supersedes the rest.
_REPLAY = """
WITH d AS MATERIALIZED (
    SELECT o.id, o.target, o.aggregate_id, o.family,
           max(o.id) OVER (PARTITION BY o.target, o.aggregate_id, o.family) AS newest
    FROM {schema}.memory_outbox AS o WHERE o.id = ANY ($1::bigint[]) AND o.status = 'dead'
),
r AS MATERIALIZED (
    SELECT d.id, COALESCE((
        SELECT n.id FROM {schema}.memory_outbox AS n
        WHERE n.aggregate_id = d.aggregate_id AND n.target = d.target AND n.family = d.family
          AND (n.status = 'pending'
               OR n.id > d.id AND n.status <> 'dead' AND NOT n.shadow AND n.last_error IS DISTINCT FROM $2)
        ORDER BY n.id DESC LIMIT 1), NULLIF(d.newest, d.id)) AS newer
    FROM d
)
UPDATE {schema}.memory_outbox AS o
SET status = CASE WHEN r.newer IS NULL THEN 'pending' ELSE 'processed' END,
    superseded_by = r.newer,
    processed_at = CASE WHEN r.newer IS NULL THEN NULL ELSE statement_timestamp() END,
    attempts = 0, suspect = FALSE, available_at = statement_timestamp()
FROM r WHERE o.id = r.id AND o.status = 'dead'
RETURNING o.id, o.status, o.target
"""

_DISCARD = """
UPDATE {schema}.memory_outbox AS o
SET status = 'processed', processed_at = statement_timestamp(), last_error = $2
WHERE o.id = ANY ($1::bigint[]) AND o.status = 'dead'
RETURNING o.id
"""


async def _lock_dead(connection: Connection, database: Database, ids: Sequence[int], tenant: str | None) -> list[int]:
    """Lock the dead events among `ids`, their memories first; returns their ids."""
    dead = await connection.fetch(database.sql(_DEAD), list(ids), tenant)
    if not dead:
        return []
    await lock_memories(connection, database, (row["aggregate_id"] for row in dead))
    locked = await connection.fetch(database.sql(_LOCK_DEAD), [row["id"] for row in dead])
    return [row["id"] for row in locked]


async def replay(database: Database, ids: Sequence[int], *, tenant: str | None = None) -> dict[int, Fate]:
    """Make dead events pending again, with their attempts forgotten. Leaves out ids that are not dead events."""
    async with database.transaction() as connection:
        dead = await _lock_dead(connection, database, ids, tenant)
        if not dead:
            return {}
        rows = await connection.fetch(database.sql(_REPLAY), dead, DISCARDED)
        waiting = {row["target"] for row in rows if row["status"] == "pending"}
        database.notify_after_commit(connection, outbox_channel(database), waiting)
    return {row["id"]: Fate.PENDING if row["status"] == "pending" else Fate.SUPERSEDED for row in rows}


async def discard(database: Database, ids: Sequence[int], *, tenant: str | None = None) -> set[int]:
    """Give dead events up: they end `processed` with `last_error` DISCARDED. Returns the ids that were dead.

    The projection keeps its difference until a full reconciliation repairs it.
    """
    async with database.transaction() as connection:
        dead = await _lock_dead(connection, database, ids, tenant)
        if not dead:
            return set()
        rows = await connection.fetch(database.sql(_DISCARD), dead, DISCARDED)
    return {row["id"] for row in rows}


@dataclass(frozen=True, slots=True)
class Backlog:
    """The outbox in figures, from one statement each, at the database's time `at`."""

    at: datetime
    pending: Mapping[tuple[str, str], int]
    """By (target, event_type)."""
    due: Mapping[str, int]
    """By target: pending and not waiting for a retry."""
    oldest_pending_seconds: Mapping[str, float]
    """By target; a target without pending events is absent."""
    processing: Mapping[str, int]
    """By target."""
    dead: Mapping[tuple[str, str], int]
    """By (target, event_type)."""

    def pending_of(self, target: Target) -> int:
        return sum(count for (name, _), count in self.pending.items() if name == target.value)

    def dead_of(self, target: Target) -> int:
        return sum(count for (name, _), count in self.dead.items() if name == target.value)


_BACKLOG = """
SELECT 'pending' AS status, target, event_type, count(*) AS events,
       count(*) FILTER (WHERE available_at <= statement_timestamp()) AS due,
       EXTRACT(EPOCH FROM statement_timestamp() - min(created_at))::float8 AS age
FROM {schema}.memory_outbox WHERE status = 'pending' GROUP BY target, event_type
UNION ALL
SELECT 'processing', target, event_type, count(*), 0, 0
FROM {schema}.memory_outbox WHERE status = 'processing' GROUP BY target, event_type
UNION ALL
SELECT 'dead', target, event_type, count(*), 0, 0
FROM {schema}.memory_outbox WHERE status = 'dead' GROUP BY target, event_type
UNION ALL
SELECT 'now', NULL, NULL, 0, 0, EXTRACT(EPOCH FROM statement_timestamp())::float8
"""


async def backlog(database: Database) -> Backlog:
    """Counts and ages per target and event type. Reads only unfinished and dead events, by their partial indexes."""
    async with database.acquire() as connection:
        rows = await connection.fetch(database.sql(_BACKLOG))
    pending: dict[tuple[str, str], int] = {}
    due: dict[str, int] = {}
    oldest: dict[str, float] = {}
    processing: dict[str, int] = {}
    dead: dict[tuple[str, str], int] = {}
    at = datetime.now(UTC)
    for row in rows:
        target, key = row["target"], (row["target"], row["event_type"])
        match row["status"]:
            case "pending":
                pending[key] = row["events"]
                due[target] = due.get(target, 0) + row["due"]
                oldest[target] = max(oldest.get(target, 0.0), row["age"])
            case "processing":
                processing[target] = processing.get(target, 0) + row["events"]
            case "dead":
                dead[key] = row["events"]
            case _:
                at = datetime.fromtimestamp(row["age"], UTC)
    return Backlog(at, pending, due, oldest, processing, dead)
