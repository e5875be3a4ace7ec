"""Claiming events, and every way a claim ends.

Invariants (each has a concurrent test in tests/outbox/test_claim_invariants.py):

1. Of a (target, memory) at most one event is `processing`; of a (target, memory, family) at most one is `pending`.
   Two partial unique indexes check this; no statement here ever violates or waits on them.
2. A claim never waits for a lock.
3. No event is lost: `processing` ends by its owner or by the end of its lease, and what is put back comes back, unless
   a newer event of the same (target, memory, family) exists, which covers it because a worker projects present truth.
4. Only the owner ends a claim: completion, renewal, failure and give-back are fenced by the claim's token.
5. An event that waits for a retry does not block a newer one: that one supersedes it when it is inserted.

Why 1 holds. Only these make an event `pending`, all under the memory's lock: `enqueue` (supersedes the older pending
one first), putting back and replay (supersede the event itself when a newer one exists). Only a claim makes one
`processing`:

- One family. A claim locks pending rows whose pair it sees idle. It can be wrong only if its snapshot shows the pending
  event but not the processing one of the pair. The pending one was inserted by a writer whose superseding UPDATE either
  saw the older event as processing or waited for the lock of the claim that made it so. So that claim committed before
  the writer did, and a snapshot that shows the writer's event shows the claim too.
- Two families (neo4j). Two claims could lock the node event and the edges event of one memory at the same time, each
  seeing the other as pending. So a second statement, whose snapshot is younger than the locks of the first, must also
  lock every pending event of each pair. If it cannot (someone else has it), or if the pair has a processing event, the
  candidate is dropped. Whoever claims later meets the lock or the processing row. Of one batch, one event per pair.

Locks are taken in one order: memory rows by id, then outbox rows by id (a claim waits for none, so it may take them as
they come). Times are the database's. A batch shares one token.

Source: seed `002` section 8.1; design sections 6.1 to 6.3.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from memplane.outbox.enqueue import ROUTES
from memplane.outbox.events import Event, Family, Target
from memplane.outbox.shadow import count_shadowed
from memplane.schema.database import Connection, Database

TWO_FAMILIES: frozenset[Target] = frozenset(route.target for route in ROUTES if route.family is Family.EDGES)

# Written so that no plan depends on the statistics of a queue, which are always stale (migration 0004): the ready
# index is named by its condition, OFFSET 0 keeps the pair's check a probe per row, locked rows are reached by place.
_CANDIDATES = """
SELECT o.id, o.ctid, o.aggregate_id, o.available_at, o.suspect
FROM {schema}.memory_outbox AS o
WHERE o.target = $1 AND o.status = 'pending'
  AND o.available_at > '-infinity' AND o.available_at <= statement_timestamp()
  AND NOT EXISTS (
      SELECT FROM {schema}.memory_outbox AS p
      WHERE p.target = $1 AND p.aggregate_id = o.aggregate_id AND p.status = 'processing' OFFSET 0)
ORDER BY o.available_at, o.id
LIMIT $2
FOR UPDATE OF o SKIP LOCKED
"""

# A suspect event travels alone: if it is the oldest it is the whole batch, else it waits.
_TAKE = """
lead AS (SELECT id, suspect FROM chosen ORDER BY available_at, id LIMIT 1)
UPDATE {schema}.memory_outbox AS o
SET status = 'processing', locked_at = statement_timestamp(), locked_by = $3, claim_token = $4,
    locked_until = statement_timestamp() + $5::float8 * interval '1 second'
WHERE o.ctid = ANY (ARRAY (
    SELECT c.ctid FROM chosen AS c, lead WHERE c.id = lead.id OR NOT (c.suspect OR lead.suspect)))
RETURNING o.id, o.event_id, o.aggregate_id, o.tenant, o.user_id, o.aggregate_version, o.event_type, o.family,
          o.payload, o.attempts, o.created_at, o.suspect, o.repair_key, o.traceparent
"""

_CLAIM_ONE_FAMILY = f"WITH chosen AS MATERIALIZED ({_CANDIDATES}), {_TAKE}"

# $1 target, $2 candidate ids, $6 their memories. `locked` holds what this transaction could lock: its own candidates
# and their siblings. `present` is what the (fresh) snapshot shows as pending; what is present and not locked is taken.
_CLAIM_TWO_FAMILIES = f"""
WITH locked AS MATERIALIZED (
    SELECT o.id, o.ctid, o.aggregate_id, o.available_at, o.suspect
    FROM {{schema}}.memory_outbox AS o
    WHERE o.target = $1 AND o.aggregate_id = ANY ($6::bigint[]) AND o.status = 'pending'
    FOR UPDATE OF o SKIP LOCKED
),
busy AS MATERIALIZED (
    SELECT o.aggregate_id FROM {{schema}}.memory_outbox AS o
    WHERE o.target = $1 AND o.aggregate_id = ANY ($6::bigint[]) AND o.status = 'processing'
    UNION ALL
    SELECT o.aggregate_id FROM {{schema}}.memory_outbox AS o
    WHERE o.target = $1 AND o.aggregate_id = ANY ($6::bigint[]) AND o.status = 'pending'
      AND o.id NOT IN (SELECT id FROM locked)
),
chosen AS MATERIALIZED (
    SELECT DISTINCT ON (l.aggregate_id) l.id, l.ctid, l.aggregate_id, l.available_at, l.suspect
    FROM locked AS l
    WHERE l.id = ANY ($2::bigint[]) AND l.aggregate_id NOT IN (SELECT aggregate_id FROM busy)
    ORDER BY l.aggregate_id, l.id
),
{_TAKE}
"""


async def claim(database: Database, target: Target, *, worker: str, limit: int, lease_seconds: float) -> list[Event]:
    """Claim up to `limit` due events of `target` for `lease_seconds`; never waits for a lock.

    An empty result means that nothing can be claimed now, not that nothing is pending. A suspect event comes alone.
    """
    token = uuid4()
    if target not in TWO_FAMILIES:
        async with database.acquire() as connection:
            rows = await connection.fetch(
                database.sql(_CLAIM_ONE_FAMILY), target.value, limit, worker, token, lease_seconds
            )
        return [_event(row, target, token) for row in rows]
    async with database.transaction() as connection:
        candidates = await connection.fetch(database.sql(_CANDIDATES), target.value, limit)
        if not candidates:
            return []
        rows = await connection.fetch(
            database.sql(_CLAIM_TWO_FAMILIES),
            target.value,
            [row["id"] for row in candidates],
            worker,
            token,
            lease_seconds,
            list({row["aggregate_id"] for row in candidates}),
        )
    return [_event(row, target, token) for row in rows]


_FAMILIES = {family.value: family for family in Family}


class _Payload(Mapping[str, Any]):
    """A payload as it came from the database, decoded when somebody reads it: workers go by the truth instead."""

    __slots__ = ("_decoded", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._decoded: dict[str, Any] | None = None

    def _mapping(self) -> dict[str, Any]:
        if self._decoded is None:
            self._decoded = json.loads(self._text)
        return self._decoded

    def __getitem__(self, key: str) -> Any:
        return self._mapping()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._mapping())

    def __len__(self) -> int:
        return len(self._mapping())

    def __repr__(self) -> str:
        return repr(self._mapping())


def _event(row: Sequence[Any], target: Target, token: UUID) -> Event:
    # By position, in the order of _TAKE's RETURNING: this runs for every event.
    (id_, event_id, memory_id, tenant, user_id, version, kind, family, payload, attempts, at, suspect, key, trace) = row
    # A pool may have a JSON codec of its own.
    thin = _Payload(payload) if type(payload) is str else payload
    return Event(
        id_, event_id, memory_id, tenant, user_id, version, kind, _FAMILIES[family], target, thin, attempts, at,
        token, suspect, key is not None, trace,
    )  # fmt: skip


# A row has a token exactly while it is processing. Rows are locked in the order of their ids, as everywhere: whoever
# has waited for a row keeps its lock even when the row turned out to be lost, so another order could deadlock.
_OURS = """
ARRAY (SELECT o.id FROM {schema}.memory_outbox AS o
       WHERE o.id = ANY ($1::bigint[]) AND o.claim_token = $2 ORDER BY o.id FOR UPDATE)
"""

_RENEW = f"""
UPDATE {{schema}}.memory_outbox AS o
SET locked_until = statement_timestamp() + $3::float8 * interval '1 second'
WHERE o.id = ANY ({_OURS})
RETURNING o.id
"""

_COMPLETE = f"""
UPDATE {{schema}}.memory_outbox AS o
SET status = 'processed', processed_at = statement_timestamp(), shadow = $3, last_error = NULL, claim_token = NULL
WHERE o.id = ANY ({_OURS})
RETURNING o.id, o.processed_at
"""


def _by_token(events: Sequence[Event]) -> dict[UUID, list[int]]:
    if not events:
        return {}
    # The events of a batch share one token object, and hashing a UUID is slow.
    token = events[0].claim_token
    ids: dict[UUID, list[int]] = {token: [event.id for event in events if event.claim_token is token]}
    if len(ids[token]) < len(events):
        for event in events:
            if event.claim_token is not token:
                ids.setdefault(event.claim_token, []).append(event.id)
    return ids


async def renew(database: Database, events: Sequence[Event], *, lease_seconds: float) -> set[int]:
    """Extend the lease to `lease_seconds` from now. Returns the ids that are still ours."""
    ours: set[int] = set()
    async with database.acquire() as connection:
        for token, ids in _by_token(events).items():
            rows = await connection.fetch(database.sql(_RENEW), ids, token, lease_seconds)
            ours.update(row[0] for row in rows)
    return ours


@dataclass(frozen=True, slots=True)
class Completed:
    """`ids` were still ours and are `processed` now; the rest had been taken away. `at` is the database's time."""

    ids: frozenset[int]
    at: datetime | None


async def complete(
    database: Database, events: Sequence[Event], *, shadow: bool = False, different: Collection[int] = ()
) -> Completed:
    """Mark events as processed, as far as they are still ours.

    `shadow`: computed and compared, not projected; counted, with those of the event ids whose object was `different`.
    """
    if not shadow:
        async with database.acquire() as connection:
            return await _complete(connection, database, events, shadow=False)
    async with database.transaction() as connection:
        done = await _complete(connection, database, events, shadow=True)
        if done.ids:
            await count_shadowed(
                connection,
                database,
                events[0].target,
                compared=len(done.ids),
                different=len(done.ids.intersection(different)),
            )
        return done


async def _complete(connection: Connection, database: Database, events: Sequence[Event], *, shadow: bool) -> Completed:
    ours: list[int] = []
    at: datetime | None = None
    for token, ids in _by_token(events).items():
        rows = await connection.fetch(database.sql(_COMPLETE), ids, token, shadow)
        ours.extend(row[0] for row in rows)
        at = rows[0][1] if rows else at
    return Completed(frozenset(ours), at)
