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
from uuid import UUID

from memplane.errors import MemplaneError
from memplane.reconcile.report import Report
from memplane.schema.database import Connection, Database

HEARTBEAT_SECONDS = 5.0
"""How often a run shows that it lives."""

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


@dataclass(frozen=True, slots=True)
class Finding:
    """What a run names about a memory. `living`: the memory lives, so only the first few need to be kept."""

    memory_id: int
    type: str
    detail: str = ""
    living: bool = False


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
