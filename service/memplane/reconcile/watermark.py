"""From where an incremental run looks at changes, or why it cannot (design section 7).

Every change stamps its row with the id of its transaction. A run records as its watermark the oldest transaction that
was still open when it began: whatever has a lower id was committed, and so seen by that run, or never will be. So the
next run looks at everything from the watermark on, late commits included. What that run met in flight is put back
below its watermark by `run.py`, and dead events are looked at by every run.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from memplane.outbox.events import Target
from memplane.schema.database import Database

# An audit that found something has repaired nothing, so the next run has to find it again.
_BASE = """
SELECT watermark::text, lineage, pg_snapshot_xmax(pg_current_snapshot())::text AS now
FROM {schema}.reconciliation_run
WHERE target = $1 AND generation_id = $2 AND state = 'completed' AND watermark IS NOT NULL
  AND (mode = 'repair' OR mismatches = '{}'::jsonb)
ORDER BY started_at DESC, id DESC LIMIT 1
"""

_CHANGED = """
SELECT DISTINCT id FROM (
    SELECT id FROM {schema}.long_term_memory WHERE changed_xid >= $1::text::xid8
    UNION ALL
    SELECT source_id FROM {schema}.memory_edge WHERE changed_xid >= $1::text::xid8
    UNION ALL
    SELECT aggregate_id FROM {schema}.memory_outbox WHERE target = $2 AND status = 'dead'
) AS changed
ORDER BY id LIMIT $3
"""

CURSOR_ROWS = 20_000


@dataclass(frozen=True, slots=True)
class Base:
    """Either a watermark, or the reason why everything has to be compared."""

    since: int | None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """The newest run that an incremental one could build upon, and the id that the next transaction may take."""

    watermark: int
    lineage: str | None
    now: int


def decide_base(earlier: EarlierRun | None, *, lineage: str) -> Base:
    """The rules, without I/O."""
    if earlier is None:
        return Base(None, "there is no complete run to build upon")
    if earlier.lineage != lineage:
        return Base(None, "the database was restored, moved or promoted since the last run")
    if earlier.watermark > earlier.now:
        return Base(None, "the database is older than the last run")
    return Base(earlier.watermark)


async def read_base(database: Database, target: Target, *, lineage: str, generation_id: int) -> Base:
    """From where an incremental run of this generation of the target may look at changes."""
    async with database.acquire() as connection:
        row = await connection.fetchrow(database.sql(_BASE), target.value, generation_id)
    return decide_base(None if row is None else _earlier(row), lineage=lineage)


async def changed_since(database: Database, target: Target, since: int, *, limit: int) -> array[int] | None:
    """Ids of the memories that changed in transactions from `since` on, or have dead events of the target; sorted.

    None when there are more than `limit`. Eight bytes each.
    """
    found: array[int] = array("q")
    async with database.transaction() as connection:
        cursor = connection.cursor(database.sql(_CHANGED), str(since), target.value, limit + 1, prefetch=CURSOR_ROWS)
        async for row in cursor:
            found.append(row[0])
    return found if len(found) <= limit else None


def _earlier(row: Mapping[str, Any]) -> EarlierRun:
    return EarlierRun(int(row["watermark"]), row["lineage"], int(row["now"]))
