"""After a restored backup the truth may be older than its projections (design section 6.5).

New memories must not take ids that a projection holds from the lost future: the id sequence is moved past every
target's maximum. What the projections hold too much, a full reconciliation in Repair mode then removes.
"""

from __future__ import annotations

from memplane.api.connections import Connections
from memplane.outbox.events import Target
from memplane.projections.generation import read_generation
from memplane.projections.milvus_client import MilvusConnection
from memplane.schema.database import Database

MAX_ID = 2**63 - 1

_MOVE = """
SELECT setval(pg_get_serial_sequence($1, 'id'), greatest($2::bigint, (SELECT last_value FROM {sequence})))
"""
_SEQUENCE = "SELECT pg_get_serial_sequence($1, 'id')"
_NEO4J_MAX = "MATCH (m:Memory {backend: $backend}) RETURN coalesce(max(m.memory_id), 0) AS newest"


async def move_ids_past_projections(connections: Connections) -> dict[str, int]:
    """Move the sequence; returns the largest id of each target that holds any of this backend's objects.

    Raises `TargetUnavailable` when a configured target is away: then nothing has been moved.
    """
    found: dict[str, int] = {}
    if connections.milvus is not None:
        found[Target.MILVUS.value] = await _milvus_maximum(connections.database, connections.milvus)
    if connections.neo4j is not None:
        generation = await read_generation(connections.database, Target.NEO4J)
        if generation is not None:
            records = await connections.neo4j.run(_NEO4J_MAX, {"backend": generation.backend})
            found[Target.NEO4J.value] = int(records[0]["newest"])
    if found:
        await _move(connections.database, max(found.values()))
    return found


async def _move(database: Database, newest: int) -> None:
    table = f"{database.schema}.long_term_memory"
    async with database.transaction() as connection:
        sequence = await connection.fetchval(_SEQUENCE, table)
        await connection.execute(_MOVE.replace("{sequence}", sequence), table, max(1, newest))


async def _milvus_maximum(database: Database, milvus: MilvusConnection) -> int:
    """The largest id, by bisection: Milvus neither sorts nor aggregates."""
    generation = await read_generation(database, Target.MILVUS)
    if generation is None or not await milvus.call("has_collection", generation.collection):
        return 0
    low, high = 0, MAX_ID
    while low < high:
        middle = low + (high - low) // 2
        rows = await milvus.call(
            "query",
            generation.collection,
            filter=f"memory_id > {middle}",
            output_fields=["memory_id"],
            limit=1,
            consistency_level="Strong",
        )
        # The row that came back narrows more than the middle does.
        low, high = (max(middle + 1, int(rows[0]["memory_id"])), high) if rows else (low, middle)
    return low
