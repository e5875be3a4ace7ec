"""Tombstones: finding them page by page, noting when they settled, and deleting those that may go.

Whoever makes an event pending holds the memory's row lock. So a row that is locked, has no unfinished event and is
deleted in the same transaction is never met by a new event: who comes later finds no row, and a worker that finds no
row deletes the object. Ids are never used again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from memplane.outbox.events import Target
from memplane.purge.judge import Tombstone, Verdict, judge, settled
from memplane.reconcile.runs import last_clean_full_runs, named
from memplane.schema.database import Connection, Database
from memplane.schema.totals import add_totals

ACTIVITY: Final = "purged"
"""The activity of `upkeep_total` that counts by kind what was removed."""

Place = tuple[datetime, int]
"""Where a page ends: deleted_at and id."""

_FACTS: Final = """
SELECT m.id, m.version, m.deleted_at, m.settled_at, o.unfinished, o.dead, o.reached, o.last_processed
FROM ({rows}) AS m
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE e.status IN ('pending', 'processing')) + m.marked AS unfinished,
           count(*) FILTER (WHERE e.status = 'dead') AS dead,
           array_agg(DISTINCT e.target) FILTER (WHERE e.aggregate_version >= m.version) AS reached,
           max(e.processed_at) AS last_processed
    FROM {schema}.memory_outbox AS e WHERE e.aggregate_id = m.id) AS o
ORDER BY m.deleted_at, m.id
"""
# What an application of old has deleted is marked until its events are made (decision 0020): they are still to come.
_TOMBSTONE: Final = (
    "SELECT t.id, t.version, t.deleted_at, t.settled_at, (t.content_hash = '')::int AS marked"
    " FROM {schema}.long_term_memory AS t"
)
_PAGE: Final = _FACTS.replace(
    "{rows}",
    f"{_TOMBSTONE} WHERE t.deleted_at IS NOT NULL AND (t.deleted_at, t.id) > ($1::timestamptz, $2)"
    " ORDER BY t.deleted_at, t.id LIMIT $3",
)
_UNSETTLED: Final = _FACTS.replace(
    "{rows}",
    f"{_TOMBSTONE} WHERE t.deleted_at IS NOT NULL AND (t.settled_at IS NULL OR t.settled_at < t.deleted_at)"
    " AND t.id > $1 ORDER BY t.id LIMIT $2",
)
_OF: Final = _FACTS.replace("{rows}", f"{_TOMBSTONE} WHERE t.deleted_at IS NOT NULL AND t.id = ANY($1::bigint[])")
# Nobody waits for a purge, and a purge waits for nobody: what is locked now is purged next time.
_LOCK: Final = """
SELECT id FROM {schema}.long_term_memory WHERE id = ANY($1::bigint[]) AND deleted_at IS NOT NULL
ORDER BY id FOR UPDATE SKIP LOCKED
"""
_SETTLE: Final = """
UPDATE {schema}.long_term_memory AS m SET settled_at = s.settled_at
FROM unnest($1::bigint[], $2::timestamptz[]) AS s (id, settled_at) WHERE m.id = s.id
"""
_EDGES: Final = "DELETE FROM {schema}.memory_edge WHERE source_id = ANY($1::bigint[])"
_ROWS: Final = "DELETE FROM {schema}.long_term_memory WHERE id = ANY($1::bigint[]) AND deleted_at IS NOT NULL"

FIRST: Final[Place] = (datetime(1, 1, 1, tzinfo=UTC), 0)


@dataclass(frozen=True, slots=True)
class Terms:
    """When a tombstone may go: which targets there are, how long it is kept, whether a target is in Shadow."""

    targets: frozenset[Target]
    retention: timedelta
    shadow: bool = False

    @property
    def projections(self) -> list[Target]:
        """The targets that are reconciled."""
        return sorted(self.targets - {Target.LTM_CACHE})


async def page(database: Database, after: Place, limit: int) -> list[Tombstone]:
    """The next tombstones in the order in which they were deleted."""
    async with database.acquire() as connection:
        rows = await connection.fetch(database.sql(_PAGE), *after, limit)
    return [_tombstone(row) for row in rows]


async def unsettled(database: Database, after: int, limit: int) -> list[Tombstone]:
    """The next tombstones, by id, of which it is not yet noted when they settled."""
    async with database.acquire() as connection:
        rows = await connection.fetch(database.sql(_UNSETTLED), after, limit)
    return sorted((_tombstone(row) for row in rows), key=lambda one: one.memory_id)


async def settle(database: Database, candidates: Sequence[Tombstone], terms: Terms) -> int:
    """Note when these settled, as far as they have; returns how many. One transaction."""
    async with database.transaction() as connection:
        found = await _locked(connection, database, [one.memory_id for one in candidates])
        now = await connection.fetchval("SELECT clock_timestamp()")
        times = {one.memory_id: settled(one, terms.targets, now) for one in found if not one.noted}
        known = {memory_id: time for memory_id, time in times.items() if time is not None}
        if known:
            await connection.execute(database.sql(_SETTLE), list(known), list(known.values()))
    return len(known)


async def verdicts(database: Database, tombstones: Sequence[Tombstone], terms: Terms) -> list[Verdict]:
    """What would become of each now. Nothing is changed."""
    async with database.acquire() as connection:
        return await _judged(connection, database, tombstones, terms)


async def remove(database: Database, memory_ids: Sequence[int], terms: Terms) -> list[int]:
    """Delete those of the tombstones that may go, with their edges, in one transaction; returns their ids.

    Each is judged again under its lock: whatever was seen before only chose the candidates.
    """
    async with database.transaction() as connection:
        found = await _locked(connection, database, memory_ids)
        outcomes = await _judged(connection, database, found, terms)
        ready = [one.memory_id for one, verdict in zip(found, outcomes, strict=True) if verdict is Verdict.READY]
        if ready:
            await connection.execute(database.sql(_EDGES), ready)
            await connection.execute(database.sql(_ROWS), ready)
            await add_totals(connection, database, ACTIVITY, {"tombstones": len(ready)})
    return ready


async def _locked(connection: Connection, database: Database, memory_ids: Sequence[int]) -> list[Tombstone]:
    rows = await connection.fetch(database.sql(_LOCK), sorted(memory_ids))
    # A statement of its own: what it sees is as new as the locks.
    facts = await connection.fetch(database.sql(_OF), [row["id"] for row in rows])
    return [_tombstone(row) for row in facts]


async def _judged(
    connection: Connection, database: Database, tombstones: Sequence[Tombstone], terms: Terms
) -> list[Verdict]:
    now = await connection.fetchval("SELECT clock_timestamp()")
    runs = await last_clean_full_runs(database, terms.projections, connection=connection)
    ids = [one.memory_id for one in tombstones]
    names: Collection[int] = await named(database, list(runs.values()), ids, connection=connection)
    return [
        judge(
            one,
            now=now,
            cutoff=now - terms.retention,
            targets=terms.targets,
            runs={target: run.started_at for target, run in runs.items()},
            named=names,
            shadow=terms.shadow,
        )
        for one in tombstones
    ]


def _tombstone(row: Mapping[str, Any]) -> Tombstone:
    return Tombstone(
        memory_id=row["id"],
        version=row["version"],
        deleted_at=row["deleted_at"],
        settled_at=row["settled_at"],
        unfinished=row["unfinished"],
        dead=row["dead"],
        reached=frozenset(Target(target) for target in row["reached"] or ()),
        last_processed=row["last_processed"],
    )
