"""The record of a run that is being made: `reconciliation_run`, and what it finds.

A run belongs to its holder, a token that changes whenever the run is taken up again. The holder shows every few
seconds that it lives, and all that it records is fenced by its token, so a process that was thought dead records
nothing more. Counts, findings, position and repairs of one step are recorded in one transaction: whoever takes the
run up again goes on exactly where it stopped.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

import asyncpg

from memplane.errors import MemplaneError
from memplane.outbox.events import Target
from memplane.reconcile.report import Kind, Mode, Report, Sample
from memplane.schema.database import Connection, Database

HEARTBEAT_SECONDS = 5.0
"""How often a run shows that it lives."""

STALE_SECONDS = 20.0
"""A run that has not been heard of for so long has no process any more."""

ABANDONED = "its process ended without a word"

UNSETTLED = "unsettled"
"""Type of a finding that is no difference: a dead memory was still in the target, and an event of it on the way."""

LIVING_FINDINGS = 10_000
"""Findings of one run about memories that live. Those about dead ones are all kept: purge asks for them."""

FIRST_ID = -(2**62)
"""Below every id: the truth's begin at 1, but somebody's hand may have put others into a target."""


class RunLost(MemplaneError):  # noqa: N818 - reads as what happened
    """Another process has taken up this run: what this one has not recorded is the other's to find."""

    def __init__(self, run_id: int) -> None:
        super().__init__(f"Run {run_id} is not this process' any more: another one has taken it up, or it was ended")


class Alive(Exception):  # noqa: N818 - reads as what is in the way; never leaves this package
    """A run of the same target and kind that has been heard of lately."""

    def __init__(self, run_id: int, heartbeat_at: datetime) -> None:
        super().__init__(run_id, heartbeat_at)
        self.run_id = run_id
        self.heartbeat_at = heartbeat_at


@dataclass(frozen=True, slots=True)
class Finding:
    """What a run names about a memory. `living`: the memory lives, so only the first few need to be kept."""

    memory_id: int
    type: str
    detail: str = ""
    living: bool = False


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

_STEP = """
UPDATE {schema}.reconciliation_run
SET position = $3, scanned = $4, unchecked = $5, mismatches = $6::jsonb, repaired = $7::jsonb, samples = $8::jsonb,
    watermark = $9::text::xid8, heartbeat_at = clock_timestamp()
WHERE id = $1 AND holder = $2 AND state = 'running'
"""

_FINDINGS = """
INSERT INTO {schema}.reconciliation_finding (run_id, memory_id, type, detail)
SELECT $1, memory_id, type, detail FROM unnest($2::bigint[], $3::text[], $4::text[]) AS f (memory_id, type, detail)
ON CONFLICT DO NOTHING
"""

_END = """
UPDATE {schema}.reconciliation_run
SET state = $3, error = $4, holder = NULL, finished_at = clock_timestamp(), heartbeat_at = clock_timestamp()
WHERE id = $1 AND holder = $2 AND state = 'running'
"""

_BEAT = """
UPDATE {schema}.reconciliation_run SET heartbeat_at = clock_timestamp()
WHERE id = $1 AND holder = $2 AND state = 'running'
"""

_WIDEN = """
UPDATE {schema}.reconciliation_run SET kind = 'full', since = NULL, reason = $3, position = $4, scanned = 0
WHERE id = $1 AND holder = $2 AND state = 'running'
"""

_LIVING = (
    "SELECT count(*) FROM {schema}.reconciliation_finding WHERE run_id = $1 AND type NOT IN ('orphan', 'unsettled')"
)

_ORPHANS = """
SELECT memory_id FROM {schema}.reconciliation_finding
WHERE run_id = $1 AND type = 'orphan' AND NOT settled ORDER BY memory_id LIMIT $2
"""

_SETTLE = """
UPDATE {schema}.reconciliation_finding SET settled = TRUE
WHERE run_id = $1 AND type = 'orphan' AND memory_id = ANY ($2::bigint[])
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


class RunRecord:
    """A run that this process holds. `position`: everything up to this memory id is compared."""

    def __init__(
        self, database: Database, report: Report, holder: UUID, *, position: int, watermark: int, since: int | None
    ) -> None:
        self.database = database
        self.report = report
        self.holder = holder
        self.position = position
        self.watermark = watermark
        self.since = since
        self._living = 0

    async def step(self, connection: Connection, position: int, findings: Sequence[Finding] = ()) -> None:
        """Record counts, findings and position within the transaction of the repairs. Raises `RunLost`."""
        report = self.report
        status = await connection.execute(
            self.database.sql(_STEP),
            report.run_id,
            self.holder,
            position,
            report.scanned,
            report.unchecked,
            json.dumps(report.mismatches),
            json.dumps(report.repaired),
            json.dumps([asdict(sample) for sample in report.samples]),
            str(self.watermark),
        )
        if status != "UPDATE 1":
            raise RunLost(report.run_id)
        if kept := self._kept(findings):
            await connection.execute(
                self.database.sql(_FINDINGS),
                report.run_id,
                [finding.memory_id for finding in kept],
                [finding.type for finding in kept],
                [finding.detail for finding in kept],
            )
        self.position = position

    def _kept(self, findings: Sequence[Finding]) -> list[Finding]:
        kept: list[Finding] = []
        for finding in findings:
            if finding.living:
                if self._living >= LIVING_FINDINGS:
                    continue
                self._living += 1
            kept.append(finding)
        return kept

    async def beat(self) -> bool:
        """Show that the run lives; False when it is not ours any more."""
        async with self.database.acquire() as connection:
            return bool(
                await connection.execute(self.database.sql(_BEAT), self.report.run_id, self.holder) == "UPDATE 1"
            )

    async def widen(self, reason: str) -> None:
        """Make an incremental run a full one, from the beginning."""
        self.report.kind, self.report.reason, self.report.scanned = "full", reason, 0
        self.since, self.position = None, FIRST_ID
        async with self.database.acquire() as connection:
            await connection.execute(self.database.sql(_WIDEN), self.report.run_id, self.holder, reason, FIRST_ID)

    async def end(self) -> None:
        """Record the report's state and error; what it counted was recorded step by step."""
        async with self.database.acquire() as connection:
            await connection.execute(
                self.database.sql(_END), self.report.run_id, self.holder, self.report.state, self.report.error
            )

    async def waiting_orphans(self, limit: int) -> list[int]:
        """Orphans that were put aside and not looked at again yet, in id order."""
        async with self.database.acquire() as connection:
            rows = await connection.fetch(self.database.sql(_ORPHANS), self.report.run_id, limit)
        return [row["memory_id"] for row in rows]

    async def settle_orphans(self, connection: Connection, memory_ids: Sequence[int]) -> None:
        """These have been looked at again."""
        await connection.execute(self.database.sql(_SETTLE), self.report.run_id, list(memory_ids))

    async def count_living(self) -> None:
        """Learn how many findings about living memories an interrupted run has kept already."""
        async with self.database.acquire() as connection:
            self._living = int(await connection.fetchval(self.database.sql(_LIVING), self.report.run_id))


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
