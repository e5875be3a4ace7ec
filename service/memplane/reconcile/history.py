"""Which repairs do not help (design section 7): one of that key is dead, or three were made within a day.

Such a difference is reported as `repair_ineffective` instead of being repaired once more. It ends when the dead event
is replayed or discarded, when the memory changes (its key holds the version), or when the day is over. What the outbox
has pruned is not counted: `outbox.retention_seconds` below a day shortens the memory of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from memplane.outbox.enqueue import Repair
from memplane.schema.database import Database

MOST_REPAIRS = 3
"""Repairs of one key within `WINDOW_SECONDS`; one more would be too many."""

WINDOW_SECONDS = 24 * 3600

# A probe per key by the memory's id, whatever the statistics of the outbox say.
_HISTORY = """
SELECT k.key, h.made, h.dead
FROM unnest($1::text[], $2::bigint[]) AS k (key, memory_id)
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE o.created_at > statement_timestamp() - $3 * interval '1 second') AS made,
           COALESCE(bool_or(o.status = 'dead'), FALSE) AS dead
    FROM {schema}.memory_outbox AS o
    WHERE o.aggregate_id = k.memory_id AND o.repair_key = k.key AND NOT o.shadow) AS h
WHERE h.made > 0 OR h.dead
"""


@dataclass(frozen=True, slots=True)
class RepairHistory:
    """What became of the repairs of one key: `made` within the window, whether one is dead."""

    made: int
    dead: bool

    @property
    def ineffective(self) -> str | None:
        """Why another repair would not help; None when it may."""
        if self.dead:
            return "a repair of it is dead"
        if self.made >= MOST_REPAIRS:
            return f"{self.made} repairs within a day"
        return None


async def ineffective_repairs(database: Database, repairs: Collection[Repair]) -> dict[str, str]:
    """The keys of those repairs that would not help, and why."""
    if not repairs:
        return {}
    by_key = {repair.key: repair.memory_id for repair in repairs}
    async with database.acquire() as connection:
        rows = await connection.fetch(
            database.sql(_HISTORY), list(by_key), list(by_key.values()), float(WINDOW_SECONDS)
        )
    return {row["key"]: reason for row in rows if (reason := _history(row).ineffective) is not None}


def _history(row: Mapping[str, Any]) -> RepairHistory:
    return RepairHistory(row["made"], row["dead"])
