"""Lexemes for memories that were written before there were any, or by an older tokenizer."""

from __future__ import annotations

from memplane.plugins.postgres.tokens import TOKENIZER_VERSION, search_tokens
from memplane.schema.database import Database

BATCH = 200

# The id bound keeps a pass from meeting its own dead index entries again. Rows that are being changed are skipped:
# their writer makes their lexemes.
_NEXT = """
SELECT id, tenant, user_id, content FROM {schema}.long_term_memory
WHERE deleted_at IS NULL AND tokens_version < 1 AND id > $1
ORDER BY id LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED
"""

_FILL = """
UPDATE {schema}.long_term_memory AS m SET search_tokens = made.tokens, tokens_version = $3
FROM unnest($1::bigint[], $2::tsvector[]) AS made (id, tokens) WHERE m.id = made.id
"""


async def backfill_tokens(database: Database, *, batches: int | None = None, batch_size: int = BATCH) -> int:
    """Tokenize what has no current lexemes, in short transactions; returns how many memories that were.

    Versions and hashes stay: nothing that a projection holds changes. Safe beside writers and other backfills.
    """
    done, last = 0, 0
    while batches is None or batches > 0:
        async with database.transaction() as connection:
            rows = await connection.fetch(database.sql(_NEXT), last, batch_size)
            if not rows:
                return done
            tokens = [search_tokens(row["tenant"], row["user_id"], row["content"]) for row in rows]
            await connection.execute(database.sql(_FILL), [row["id"] for row in rows], tokens, TOKENIZER_VERSION)
        done += len(rows)
        last = rows[-1]["id"]
        batches = None if batches is None else batches - 1
    return done
