"""Counters that live in the database (`upkeep_total`): what was done to rows that are gone, for the metrics."""

from __future__ import annotations

from collections.abc import Mapping

from memplane.schema.database import Connection, Database

# In one order, so that two transactions never wait for each other.
_ADD = """
INSERT INTO {schema}.upkeep_total AS t (activity, kind, total)
SELECT $1, n.kind, n.added FROM unnest($2::text[], $3::bigint[]) AS n (kind, added) ORDER BY n.kind
ON CONFLICT (activity, kind) DO UPDATE SET total = t.total + excluded.total
"""
_READ = "SELECT activity, kind, total FROM {schema}.upkeep_total ORDER BY activity, kind"


async def add_totals(connection: Connection, database: Database, activity: str, counts: Mapping[str, int]) -> None:
    """Add to the counters of an activity, in the caller's transaction: as its last statement, since others wait."""
    counted = {kind: count for kind, count in counts.items() if count}
    if counted:
        await connection.execute(database.sql(_ADD), activity, list(counted), list(counted.values()))


async def read_totals(connection: Connection, database: Database) -> dict[tuple[str, str], int]:
    """(activity, kind) → how often, ever."""
    rows = await connection.fetch(database.sql(_READ))
    return {(row["activity"], row["kind"]): row["total"] for row in rows}
