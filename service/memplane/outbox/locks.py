"""The memory lock: whoever makes an outbox event pending holds it (design section 6.1).

Lock order everywhere: memory rows in ascending id, then advisory locks for ids without a row, in ascending id, then
outbox rows. `FOR NO KEY UPDATE` conflicts with every writer of the memory and with itself.
"""

from __future__ import annotations

from collections.abc import Iterable

from memplane.schema.database import Connection, Database

_LOCK_ROWS = """
SELECT id FROM {schema}.long_term_memory WHERE id = ANY($1::bigint[]) ORDER BY id FOR NO KEY UPDATE
"""

_LOCK_ABSENT = """
SELECT pg_advisory_xact_lock(hashtextextended($2 || ':memory:' || id, 0))
FROM (SELECT unnest($1::bigint[]) AS id ORDER BY 1) AS absent
"""


async def lock_memories(connection: Connection, database: Database, memory_ids: Iterable[int]) -> set[int]:
    """Lock the memories until the end of the transaction; returns the ids that have a row.

    An id without a row (purged, or never of this backend) is locked by an advisory lock of the transaction.
    """
    wanted = sorted(set(memory_ids))
    if not wanted:
        return set()
    rows = await connection.fetch(database.sql(_LOCK_ROWS), wanted)
    present = {row["id"] for row in rows}
    absent = [memory_id for memory_id in wanted if memory_id not in present]
    if absent:
        await connection.execute(database.sql(_LOCK_ABSENT), absent, database.settings.schema_name)
    return present
