"""Rows of `long_term_memory` as memory items, and reading items by id."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from memplane.contracts import MemoryItem, Scope
from memplane.plugins.postgres.documents import stored_content
from memplane.plugins.postgres.filters import Binds, to_sql
from memplane.retrieval.filters import Filter
from memplane.schema.database import Connection, Database
from memplane.schema.times import format_time

ITEM_COLUMNS: Final = (
    "m.id, m.key, m.content, m.document, m.metadata, m.version, m.created_at, m.updated_at, m.expires_at"
)

LIVE: Final = "m.deleted_at IS NULL AND (m.expires_at IS NULL OR m.expires_at > statement_timestamp())"
"""An expired row is absent everywhere, whether or not the sweep has come by."""

Row = Mapping[str, Any]
"""A database record with the columns that its reader needs."""


def item_of(row: Row) -> MemoryItem:
    """The memory item of a row with `ITEM_COLUMNS`."""
    item = MemoryItem(
        id=str(row["id"]),
        content=stored_content(row["content"], row["document"]),
        version=row["version"],
        createdAt=format_time(row["created_at"]),
        updatedAt=format_time(row["updated_at"]),
    )
    if row["key"] is not None:
        item["key"] = row["key"]
    if row["metadata"] is not None:
        item["metadata"] = json.loads(row["metadata"])
    return item


async def hydrate(
    database: Database,
    scope: Scope,
    ids: Sequence[int],
    filter: Filter | None = None,  # noqa: A002 - the wire's name
) -> list[MemoryItem]:
    """The live memories of `scope` among `ids` that match the filter, in the order of `ids`."""
    if not ids:
        return []
    async with database.acquire() as connection:
        return await hydrate_on(connection, database, scope, ids, filter)


async def hydrate_on(
    connection: Connection,
    database: Database,
    scope: Scope,
    ids: Sequence[int],
    filter: Filter | None = None,  # noqa: A002
) -> list[MemoryItem]:
    """`hydrate` on the caller's connection."""
    binds = Binds(scope.tenant, scope.user, list(ids))
    condition = "" if filter is None else f" AND {to_sql(filter, binds)}"
    statement = (
        f"SELECT {ITEM_COLUMNS} FROM {{schema}}.long_term_memory AS m "
        f"WHERE m.tenant = $1 AND m.user_id = $2 AND m.id = ANY($3::bigint[]) AND {LIVE}{condition}"
    )
    rows = await connection.fetch(database.sql(statement), *binds.values)
    found = {row["id"]: row for row in rows}
    return [item_of(found[memory_id]) for memory_id in dict.fromkeys(ids) if memory_id in found]
