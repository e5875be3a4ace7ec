"""Putting claimed events back: give-back, charged failure, the end of a lease.

All of them make events pending again, so all take the memories' locks first, and each event that has a newer pending
one of its (target, memory, family) is superseded by it instead (invariants 1 and 3 of `outbox/claim.py`).
Source: design sections 6.1 to 6.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from memplane.outbox.events import Event, Target
from memplane.outbox.locks import lock_memories
from memplane.outbox.retry import RetryPolicy
from memplane.schema.database import Connection, Database

MAX_ERROR_LENGTH = 1000
"""Characters of a reason that are stored in `last_error`."""

LEASE_RAN_OUT = "the lease ran out while this event was processed alone"


class Fate(StrEnum):
    """What became of an event that was put back."""

    PENDING = "pending"
    SUPERSEDED = "superseded"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class Failure:
    """An event and the reason, safe to store and show, why its target refused it."""

    event: Event
    reason: str


# One row per event: id, token, charge (0 or 1), dead, delay in seconds, reason, suspect.
_PUT_BACK = """
WITH b AS MATERIALIZED (
    SELECT o.id, u.charge, u.dead, u.delay, u.reason, u.suspect, n.id AS newer
    FROM unnest($1::bigint[], $2::uuid[], $3::int[], $4::boolean[], $5::float8[], $6::text[], $7::boolean[])
         AS u (id, token, charge, dead, delay, reason, suspect)
    JOIN {schema}.memory_outbox AS o ON o.id = u.id AND o.claim_token = u.token
    LEFT JOIN LATERAL (
        SELECT p.id FROM {schema}.memory_outbox AS p
        WHERE p.target = o.target AND p.aggregate_id = o.aggregate_id AND p.family = o.family AND p.status = 'pending'
        LIMIT 1) AS n ON TRUE
    ORDER BY o.id
    FOR UPDATE OF o
)
UPDATE {schema}.memory_outbox AS o
SET status = CASE WHEN b.newer IS NOT NULL THEN 'processed' WHEN b.dead THEN 'dead' ELSE 'pending' END,
    superseded_by = b.newer,
    processed_at = CASE WHEN b.newer IS NOT NULL THEN statement_timestamp() END,
    attempts = o.attempts + b.charge,
    available_at = CASE WHEN b.newer IS NULL AND NOT b.dead
                        THEN statement_timestamp() + b.delay * interval '1 second' ELSE o.available_at END,
    last_error = COALESCE(b.reason, o.last_error),
    suspect = b.suspect,
    locked_at = NULL, locked_until = NULL, locked_by = NULL, claim_token = NULL
FROM b
WHERE o.id = b.id
RETURNING o.id, o.status
"""

_FATES = {"pending": Fate.PENDING, "processed": Fate.SUPERSEDED, "dead": Fate.DEAD}


@dataclass(frozen=True, slots=True)
class _Return:
    """How one event goes back."""

    event_id: int
    memory_id: int
    token: Any
    charge: int = 0
    dead: bool = False
    delay: float = 0.0
    reason: str | None = None
    suspect: bool = False


async def _put_back(connection: Connection, database: Database, returns: Sequence[_Return]) -> dict[int, Fate]:
    await lock_memories(connection, database, (item.memory_id for item in returns))
    rows = await connection.fetch(
        database.sql(_PUT_BACK),
        [item.event_id for item in returns],
        [item.token for item in returns],
        [item.charge for item in returns],
        [item.dead for item in returns],
        [item.delay for item in returns],
        [item.reason for item in returns],
        [item.suspect for item in returns],
    )
    return {row["id"]: _FATES[row["status"]] for row in rows}


async def give_back(database: Database, events: Sequence[Event], *, delay_seconds: float = 0.0) -> dict[int, Fate]:
    """Return events uncharged (drain, unhealthy target). The result leaves out what was no longer ours."""
    if not events:
        return {}
    async with database.transaction() as connection:
        return await _put_back(
            connection,
            database,
            [
                _Return(event.id, event.memory_id, event.claim_token, delay=delay_seconds, suspect=event.suspect)
                for event in events
            ],
        )


async def fail(database: Database, failures: Sequence[Failure], policy: RetryPolicy) -> dict[int, Fate]:
    """Charge one attempt to each event; it waits for its retry, or is dead. Leaves out what was no longer ours."""
    if not failures:
        return {}
    async with database.transaction() as connection:
        return await _put_back(
            connection,
            database,
            [
                _Return(
                    failure.event.id,
                    failure.event.memory_id,
                    failure.event.claim_token,
                    charge=1,
                    dead=policy.exhausted(failure.event.attempts + 1),
                    delay=policy.delay(failure.event.attempts + 1),
                    reason=failure.reason[:MAX_ERROR_LENGTH],
                )
                for failure in failures
            ],
        )


# No claim of ours leaves a row like this, but another tool or a hand may. It has no owner who could end it, no token
# that could fence it, and without a lease no end: as it is, it would block its memory for ever.
_UNOWNED = """
UPDATE {schema}.memory_outbox AS o
SET claim_token = COALESCE(o.claim_token, gen_random_uuid()),
    locked_until = COALESCE(o.locked_until, statement_timestamp())
WHERE o.id = ANY (ARRAY (
    SELECT p.id FROM {schema}.memory_outbox AS p
    WHERE p.target = $1 AND p.status = 'processing' AND (p.claim_token IS NULL OR p.locked_until IS NULL)
    ORDER BY p.id FOR UPDATE SKIP LOCKED))
"""

_EXPIRED = """
SELECT o.id, o.aggregate_id, o.claim_token, o.attempts, o.suspect
FROM {schema}.memory_outbox AS o
WHERE o.target = $1 AND o.status = 'processing'
  AND o.locked_until > '-infinity' AND o.locked_until < statement_timestamp()
ORDER BY o.locked_until
LIMIT $2
"""

# After the wait for the memories' locks: what is still expired, and not being completed or reclaimed right now.
_STILL_EXPIRED = """
SELECT o.id FROM {schema}.memory_outbox AS o
WHERE o.id = ANY ($1::bigint[]) AND o.claim_token IS NOT NULL AND o.locked_until < statement_timestamp()
FOR UPDATE OF o SKIP LOCKED
"""


async def reclaim_expired(
    database: Database, target: Target, policy: RetryPolicy, *, limit: int = 1000
) -> dict[int, Fate]:
    """Take back the events of `target` whose lease ran out; returns what became of each.

    An event that shared its batch may be innocent: it becomes suspect, uncharged, and is claimed alone next time. Only
    a lease that runs out on a suspect event charges it. Events in flight that nobody owns are taken back, too.
    """
    async with database.acquire() as connection:
        await connection.execute(database.sql(_UNOWNED), target.value)
        expired = await connection.fetch(database.sql(_EXPIRED), target.value, limit)
    if not expired:
        return {}
    async with database.transaction() as connection:
        await lock_memories(connection, database, (row["aggregate_id"] for row in expired))
        still = await connection.fetch(database.sql(_STILL_EXPIRED), [row["id"] for row in expired])
        ids = {row["id"] for row in still}
        return await _put_back(connection, database, [_reclaimed(row, policy) for row in expired if row["id"] in ids])


def _reclaimed(row: Any, policy: RetryPolicy) -> _Return:
    if not row["suspect"]:
        return _Return(row["id"], row["aggregate_id"], row["claim_token"], suspect=True)
    attempts = row["attempts"] + 1
    return _Return(
        row["id"],
        row["aggregate_id"],
        row["claim_token"],
        charge=1,
        dead=policy.exhausted(attempts),
        delay=policy.delay(attempts),
        reason=LEASE_RAN_OUT,
        suspect=True,
    )
