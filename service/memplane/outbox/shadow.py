"""Shadow mode: what was compared instead of projected, and what is owed for it (seed `002` section 14; design 6.9).

The counts are raised in the transaction that ends the events, and a full repair settles what it could see when it
began. So an event that a Shadow worker ends beside a repair makes another repair due, whatever the clocks say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from memplane.outbox.events import Target
from memplane.schema.database import Connection, Database

_COUNT: Final = """
INSERT INTO {schema}.projection_shadow AS s (target, compared, different) VALUES ($1, $2, $3)
ON CONFLICT (target) DO UPDATE SET compared = s.compared + $2, different = s.different + $3, compared_at = now()
"""
_READ: Final = "SELECT compared, different, repaired FROM {schema}.projection_shadow WHERE target = $1"
_REPAIRED: Final = "UPDATE {schema}.projection_shadow SET repaired = greatest(repaired, $2) WHERE target = $1"


@dataclass(frozen=True, slots=True)
class Shadowed:
    """Events of one target that ended in Shadow mode, since the backend exists."""

    compared: int = 0
    different: int = 0
    repaired: int = 0

    @property
    def due(self) -> bool:
        """Whether the target may lack some of them: a full repair has to come before it counts as live."""
        return self.compared > self.repaired


async def count_shadowed(
    connection: Connection, database: Database, target: Target, *, compared: int, different: int
) -> None:
    """Add to the counts, in the transaction that ends the events."""
    await connection.execute(database.sql(_COUNT), target.value, compared, different)


async def read_shadowed(database: Database, target: Target) -> Shadowed:
    async with database.acquire() as connection:
        row = await connection.fetchrow(database.sql(_READ), target.value)
    return Shadowed() if row is None else Shadowed(**dict(row))


async def settle_shadowed(database: Database, target: Target, seen: Shadowed) -> None:
    """A full repair that began after `seen` was read has ended well."""
    async with database.acquire() as connection:
        await connection.execute(database.sql(_REPAIRED), target.value, seen.compared)
