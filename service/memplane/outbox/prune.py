"""Deleting processed events after their retention, in small batches beside running claims (design section 6.8)."""

from __future__ import annotations

from memplane.schema.database import Database

# Rows of one batch are locked without waiting, so that two pruners share the work. A superseding event is deleted with
# or after what it superseded, because it was processed later.
_PRUNE = """
DELETE FROM {schema}.memory_outbox
WHERE ctid = ANY (ARRAY (
    SELECT o.ctid FROM {schema}.memory_outbox AS o
    WHERE o.status = 'processed' AND o.processed_at < statement_timestamp() - $1::float8 * interval '1 second'
    ORDER BY o.processed_at
    LIMIT $2
    FOR UPDATE OF o SKIP LOCKED))
"""


async def prune_processed(
    database: Database, *, retention_seconds: float, batch: int = 1000, max_batches: int | None = None
) -> int:
    """Delete processed events that are older than `retention_seconds`; returns how many.

    Each batch is a transaction of its own. Pending, processing and dead events are never deleted.
    """
    deleted = 0
    batches = 0
    while max_batches is None or batches < max_batches:
        async with database.acquire() as connection:
            status = await connection.execute(database.sql(_PRUNE), retention_seconds, batch)
        count = int(status.rpartition(" ")[2])
        deleted += count
        batches += 1
        if count < batch:
            break
    return deleted
