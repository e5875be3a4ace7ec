"""How a run begins: by taking up the one that broke off, if it may go on, or anew.

Who begins looks first for runs whose process has gone: those that show no life any more are ended, and can be taken
up. One that shows life is in the way; who waits a little longer knows for sure.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import uuid4

import asyncpg

from memplane.outbox.events import Target
from memplane.reconcile.record import FIRST_ID, RunRecord
from memplane.reconcile.report import Kind, Mode, Report, Sample
from memplane.schema.database import Connection, Database

STALE_SECONDS = 20.0
"""A run that has not been heard of for so long has no process any more."""

ABANDONED = "its process ended without a word"


class Alive(Exception):  # noqa: N818 - reads as what is in the way; never leaves this package
    """A run of the same target and kind that has been heard of lately."""

    def __init__(self, run_id: int, heartbeat_at: datetime) -> None:
        super().__init__(run_id, heartbeat_at)
        self.run_id = run_id
        self.heartbeat_at = heartbeat_at


_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))"

_END_ABANDONED = """
UPDATE {schema}.reconciliation_run
SET state = 'failed', error = $2, holder = NULL, finished_at = COALESCE(heartbeat_at, started_at)
WHERE state = 'running' AND ($1::text IS NULL OR target = $1)
  AND COALESCE(heartbeat_at, started_at) < clock_timestamp() - $3 * interval '1 second'
RETURNING id
"""

_ALIVE = """
SELECT id, heartbeat_at FROM {schema}.reconciliation_run
WHERE target = $1 AND kind = $2 AND state = 'running' ORDER BY id DESC LIMIT 1
"""

# Only the newest of its kind, and only while nothing it has compared may have changed hands in between.
_BROKEN_OFF = """
SELECT id FROM (
    SELECT id, state, mode, started_at, generation_id, lineage FROM {schema}.reconciliation_run
    WHERE target = $1 AND kind = $2 ORDER BY started_at DESC, id DESC LIMIT 1) AS newest
WHERE state IN ('failed', 'cancelled') AND mode = $3 AND generation_id = $4 AND lineage = $5
  AND started_at > clock_timestamp() - $6 * interval '1 second'
"""

_TAKE_UP = """
UPDATE {schema}.reconciliation_run
SET state = 'running', error = NULL, finished_at = NULL, holder = $2, heartbeat_at = clock_timestamp(),
    resumed = resumed + 1
WHERE id = $1
RETURNING id, target, kind, mode, position, watermark::text, since::text, reason, resumed, scanned, unchecked,
          mismatches, repaired, samples
"""

_START = """
INSERT INTO {schema}.reconciliation_run
    (target, kind, mode, position, watermark, since, reason, generation_id, lineage, holder, heartbeat_at)
VALUES ($1, $2, $3, $4, pg_snapshot_xmin(pg_current_snapshot()), $5::text::xid8, $6, $7, $8, $9, clock_timestamp())
RETURNING id, watermark::text
"""


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a run that is to begin needs to know. `since`: the watermark of an incremental run."""

    target: Target
    kind: Kind
    mode: Mode
    generation_id: int
    lineage: str
    since: int | None = None
    reason: str | None = None


async def begin(
    database: Database, beginning: Beginning, *, resume_seconds: float, stale_seconds: float = STALE_SECONDS
) -> RunRecord:
    """Take up the run that broke off, if it may go on, else start a new one.

    Taken up is the newest run of the same target and kind, if it ended without being complete, in the same mode, on
    the same generation and server, and began less than `resume_seconds` ago. Raises `Alive`.
    """
    async with database.transaction() as connection:
        await connection.execute(_LOCK, f"memplane:reconcile:{database.schema}:{beginning.target}")
        await connection.fetch(database.sql(_END_ABANDONED), beginning.target.value, ABANDONED, stale_seconds)
        alive = await connection.fetchrow(database.sql(_ALIVE), beginning.target.value, beginning.kind)
        if alive is not None:
            raise Alive(alive["id"], alive["heartbeat_at"])
        broken_off = await connection.fetchval(
            database.sql(_BROKEN_OFF),
            beginning.target.value,
            beginning.kind,
            beginning.mode,
            beginning.generation_id,
            beginning.lineage,
            resume_seconds,
        )
        if broken_off is None:
            return await _start(connection, database, beginning)
        record = await _take_up(connection, database, broken_off)
    await record.count_living()
    return record


async def end_abandoned(database: Database, *, stale_seconds: float = STALE_SECONDS) -> list[int]:
    """Mark runs as failed whose process has gone; returns their ids. They can be taken up again all the same."""
    async with database.acquire() as connection:
        rows = await connection.fetch(database.sql(_END_ABANDONED), None, ABANDONED, stale_seconds)
    return [row["id"] for row in rows]


async def _start(connection: Connection, database: Database, beginning: Beginning) -> RunRecord:
    holder = uuid4()
    row = await connection.fetchrow(
        database.sql(_START),
        beginning.target.value,
        beginning.kind,
        beginning.mode,
        FIRST_ID,
        None if beginning.since is None else str(beginning.since),
        beginning.reason,
        beginning.generation_id,
        beginning.lineage,
        holder,
    )
    assert row is not None
    report = Report(row["id"], beginning.target, beginning.kind, beginning.mode, reason=beginning.reason)
    return RunRecord(
        database, report, holder, position=FIRST_ID, watermark=int(row["watermark"]), since=beginning.since
    )


async def _take_up(connection: Connection, database: Database, run_id: int) -> RunRecord:
    holder = uuid4()
    row = await connection.fetchrow(database.sql(_TAKE_UP), run_id, holder)
    assert row is not None
    report = Report(
        row["id"],
        Target(row["target"]),
        row["kind"],
        row["mode"],
        scanned=row["scanned"],
        mismatches=_decoded(row["mismatches"]),
        repaired=_decoded(row["repaired"]),
        samples=[Sample(**sample) for sample in _decoded(row["samples"])],
        reason=row["reason"],
        resumed=row["resumed"],
        unchecked=row["unchecked"],
    )
    since = None if row["since"] is None else int(row["since"])
    return RunRecord(database, report, holder, position=row["position"], watermark=int(row["watermark"]), since=since)


def _decoded(value: object) -> Any:
    # A pool may have a JSON codec of its own.
    return json.loads(value) if isinstance(value, str) else value


_LINEAGE = """
SELECT i.system_identifier, substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) AS timeline
FROM {schema}.backend_identity AS i
"""

_IDENTITY = "SELECT system_identifier FROM {schema}.backend_identity"


async def read_lineage(database: Database) -> str:
    """The history to which the database's transaction ids belong: its server, and the timeline since a promotion.

    A restored or promoted server may have lost transactions, and gives their ids to others.
    """
    async with database.acquire() as connection:
        try:
            row = await connection.fetchrow(database.sql(_LINEAGE))
        except asyncpg.InsufficientPrivilegeError:
            # A hardened server: then a promotion is not noticed, and the next full run finds what it has changed.
            return str(await connection.fetchval(database.sql(_IDENTITY)))
    assert row is not None
    return f"{row['system_identifier']}/{row['timeline']}"
