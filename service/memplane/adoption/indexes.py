"""Indexes built beside writers. What an interrupted build left behind is invalid: it is dropped and built anew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import asyncpg

from memplane.adoption.locking import Stopped
from memplane.adoption.progress import Report
from memplane.adoption.statements import Index
from memplane.errors import SchemaError
from memplane.schema.database import Database
from memplane.signal import Signal

_VALID: Final = """
SELECT i.indisvalid FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2
"""


async def build_indexes(
    connection: asyncpg.Connection[Any], database: Database, indexes: Sequence[Index], signal: Signal, report: Report
) -> None:
    """Build those that are missing. Raises `SchemaError` when a unique one cannot be, `Stopped` between two."""
    for number, index in enumerate(indexes):
        if signal.aborted:
            raise Stopped
        report(f"index {index.name}", number, len(indexes))
        valid = await connection.fetchval(_VALID, database.settings.schema_name, index.name)
        if valid is False:
            await connection.execute(database.sql(f"DROP INDEX CONCURRENTLY {{schema}}.{index.name}"))
        if valid is not True:
            await _build(connection, database, index)


async def _build(connection: asyncpg.Connection[Any], database: Database, index: Index) -> None:
    try:
        await connection.execute(database.sql(index.sql))
    except asyncpg.UniqueViolationError:
        raise SchemaError(
            f"{index.name} cannot be built: two live memories of one user have the same key. "
            "Change one of them in the old table, and run the command again"
        ) from None
