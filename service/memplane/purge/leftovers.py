"""What is purged beside tombstones: embeddings that no memory uses, removed edges, entries of old merges."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from memplane.outbox.events import Target
from memplane.purge.tombstones import ACTIVITY, Terms
from memplane.reconcile.runs import last_clean_full_runs
from memplane.schema.database import Connection, Database
from memplane.schema.totals import add_totals

EMBEDDING_GRACE: Final = 3600.0
"""Seconds for which a stored embedding is kept whoever uses it: a text may come back, and a rebuild may just begin."""

Key = tuple[str, bytes, str, str]
"""tenant, text hash, model, revision."""

BEFORE_ALL: Final[Key] = ("", b"", "", "")

# A model that belongs to no generation any more is not used either; without any generation nothing is known.
_EMBEDDINGS: Final = """
SELECT p.tenant, p.text_hash, p.model, p.revision,
       p.created_at < statement_timestamp() - $6 * interval '1 second' AND (
           NOT EXISTS (SELECT FROM {schema}.long_term_memory AS m
                       WHERE m.text_hash = p.text_hash AND m.tenant = p.tenant AND m.deleted_at IS NULL)
           OR (EXISTS (SELECT FROM {schema}.projection_generation AS g WHERE g.target = 'milvus' AND g.state = 'active')
               AND NOT EXISTS (SELECT FROM {schema}.projection_generation AS g
                               WHERE g.target = 'milvus' AND g.state <> 'dropped'
                                 AND g.embedding_model = p.model AND g.embedding_revision = p.revision))
       ) AS unused
FROM (SELECT e.tenant, e.text_hash, e.model, e.revision, e.created_at FROM {schema}.memory_embedding AS e
      WHERE (e.tenant, e.text_hash, e.model, e.revision) > ($1, $2, $3, $4)
      ORDER BY e.tenant, e.text_hash, e.model, e.revision LIMIT $5) AS p
ORDER BY p.tenant, p.text_hash, p.model, p.revision
"""
_KEYS: Final = "unnest($1::text[], $2::bytea[], $3::text[], $4::text[]) AS k (tenant, text_hash, model, revision)"
_DROP_EMBEDDINGS: Final = f"""
DELETE FROM {{schema}}.memory_embedding AS e USING {_KEYS}
WHERE (e.tenant, e.text_hash, e.model, e.revision) = (k.tenant, k.text_hash, k.model, k.revision)
RETURNING e.tenant, e.text_hash, e.model, e.revision, e.dimensions, e.vector, e.created_at
"""
_USED_AGAIN: Final = f"""
SELECT DISTINCT k.tenant, k.text_hash FROM {_KEYS}
JOIN {{schema}}.long_term_memory AS m ON m.text_hash = k.text_hash AND m.tenant = k.tenant AND m.deleted_at IS NULL
JOIN {{schema}}.projection_generation AS g ON g.target = 'milvus' AND g.state <> 'dropped'
     AND g.embedding_model = k.model AND g.embedding_revision = k.revision
"""
_PUT_BACK: Final = """
INSERT INTO {schema}.memory_embedding (tenant, text_hash, model, revision, dimensions, vector, created_at)
SELECT * FROM unnest($1::text[], $2::bytea[], $3::text[], $4::text[], $5::int[], $6::bytea[], $7::timestamptz[])
ON CONFLICT DO NOTHING
"""
_EDGES: Final = """
DELETE FROM {schema}.memory_edge WHERE ctid = ANY (ARRAY (
    SELECT e.ctid FROM {schema}.memory_edge AS e
    WHERE e.deleted_at < statement_timestamp() - $1 * interval '1 second' AND e.deleted_at < $2
      AND NOT EXISTS (SELECT FROM {schema}.memory_outbox AS o
                      WHERE o.aggregate_id = e.source_id
                        AND (o.status <> 'processed' OR o.processed_at >= $2))
      AND NOT EXISTS (SELECT FROM {schema}.reconciliation_finding AS f
                      WHERE f.run_id = $3 AND f.memory_id = e.source_id)
    ORDER BY e.deleted_at LIMIT $4 FOR UPDATE OF e SKIP LOCKED))
"""
_CHAIN: Final = """
DELETE FROM {schema}.memory_supersedes WHERE ctid = ANY (ARRAY (
    SELECT s.ctid FROM {schema}.memory_supersedes AS s
    WHERE s.created_at < statement_timestamp() - $1 * interval '1 second'
      AND NOT EXISTS (SELECT FROM {schema}.long_term_memory AS m WHERE m.id IN (s.superseded_id, s.survivor_id))
    ORDER BY s.created_at LIMIT $2 FOR UPDATE OF s SKIP LOCKED))
"""


async def purge_embeddings(
    database: Database, after: Key, limit: int, *, grace_seconds: float = EMBEDDING_GRACE
) -> tuple[int, Key | None]:
    """Look at the next stored embeddings and drop those that nobody uses; returns how many, and where to go on.

    A memory may take up a text at the same moment, and its worker may have read the embedding already: then nobody
    would make it again, and a rebuild would have to. So after the delete it is looked once more, and put back.
    """
    async with database.acquire() as connection:
        rows = await connection.fetch(database.sql(_EMBEDDINGS), *after, limit, grace_seconds)
    keys = [(row["tenant"], row["text_hash"], row["model"], row["revision"]) for row in rows if row["unused"]]
    following = rows[-1] if len(rows) == limit else None
    place = (
        None
        if following is None
        else (following["tenant"], following["text_hash"], following["model"], following["revision"])
    )
    if not keys:
        return 0, place
    columns = [list(column) for column in zip(*keys, strict=True)]
    async with database.transaction() as connection:
        dropped = await connection.fetch(database.sql(_DROP_EMBEDDINGS), *columns)
        await add_totals(connection, database, ACTIVITY, {"embeddings": len(dropped)})
    async with database.acquire() as connection:
        used = {
            (row["tenant"], row["text_hash"]) for row in await connection.fetch(database.sql(_USED_AGAIN), *columns)
        }
        back = [tuple(row) for row in dropped if (row["tenant"], row["text_hash"]) in used]
        if back:
            await connection.execute(database.sql(_PUT_BACK), *(list(column) for column in zip(*back, strict=True)))
    return len(dropped) - len(back), place


async def purge_edges(database: Database, terms: Terms, limit: int) -> int:
    """Drop removed edges of memories that stay, under the same conditions as tombstones; returns how many."""
    if terms.shadow:
        return 0
    async with database.transaction() as connection:
        proven = await _graph_proven(connection, database, terms)
        if proven is None:
            return 0
        status = await connection.execute(
            database.sql(_EDGES), terms.retention.total_seconds(), proven[0], proven[1], limit
        )
        count = int(status.rpartition(" ")[2])
        await add_totals(connection, database, ACTIVITY, {"edges": count})
    return count


async def _graph_proven(connection: Connection, database: Database, terms: Terms) -> tuple[datetime, int] | None:
    """Until when removed edges are proven to be gone, and by which run; None when nothing is."""
    if Target.NEO4J not in terms.targets:
        now: datetime = await connection.fetchval("SELECT clock_timestamp()")
        return now, 0
    runs = await last_clean_full_runs(database, [Target.NEO4J], connection=connection)
    run = runs.get(Target.NEO4J)
    return None if run is None else (run.started_at, run.run_id)


async def purge_chain(database: Database, retention_seconds: float, limit: int) -> int:
    """Drop entries of merges whose memories are purged, once they are old; returns how many."""
    async with database.transaction() as connection:
        status = await connection.execute(database.sql(_CHAIN), retention_seconds, limit)
        count = int(status.rpartition(" ")[2])
        await add_totals(connection, database, ACTIVITY, {"supersedes": count})
    return count
