"""State and history of one memory, read from PostgreSQL alone (design section 4)."""

from __future__ import annotations

from memplane.api.admin.models import MemoryState, ProjectionState, event_model
from memplane.outbox.admin import list_events
from memplane.plugins.postgres.inspection import memory_state as inspect_memory
from memplane.schema.database import Database

HISTORY = 200

_PROJECTIONS = """
SELECT target, family,
       max(aggregate_version) FILTER (WHERE status = 'processed' AND superseded_by IS NULL AND NOT shadow) AS projected,
       count(*) FILTER (WHERE status IN ('pending', 'processing')) AS unfinished,
       count(*) FILTER (WHERE status = 'dead') AS dead
FROM {schema}.memory_outbox
WHERE aggregate_id = $1 AND ($2::text IS NULL OR tenant = $2)
GROUP BY target, family
ORDER BY target, family
"""


async def memory_state(database: Database, memory_id: int, tenant: str | None) -> MemoryState | None:
    """The state of a memory of this tenant (None: of any); None when neither the row nor an event is left."""
    found = await inspect_memory(database, tenant, str(memory_id))
    events = await list_events(database, memory_id=memory_id, tenant=tenant, limit=HISTORY)
    if found is None and not events:
        return None
    return MemoryState(
        memory_id=str(memory_id),
        memory=None if found is None else found["memory"],
        edges=[] if found is None else found["edges"],
        projections=await _projections(database, memory_id, tenant),
        history=[event_model(event) for event in events],
    )


async def _projections(database: Database, memory_id: int, tenant: str | None) -> list[ProjectionState]:
    async with database.acquire() as connection:
        rows = await connection.fetch(database.sql(_PROJECTIONS), memory_id, tenant)
    return [
        ProjectionState(
            target=row["target"],
            family=row["family"],
            projected_version=row["projected"],
            unfinished=row["unfinished"],
            dead=row["dead"],
        )
        for row in rows
    ]
