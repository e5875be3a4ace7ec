"""GET and QUERY: reads of one scope, always from PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from memplane.contracts import MemoryItem, QueryInput, QueryOutput, Scope
from memplane.plugins.postgres.cursor import binding, decode_cursor, encode_cursor
from memplane.plugins.postgres.filters import Binds, to_sql
from memplane.plugins.postgres.order import after_sql, order_sql, parse_order
from memplane.plugins.postgres.rows import ITEM_COLUMNS, LIVE, item_of
from memplane.retrieval.filters import parse_filter
from memplane.schema.canonical import check_text, normalise
from memplane.schema.database import Connection, Database
from memplane.schema.ids import parse_id

MAX_PAGE_BYTES: Final = 16 * 2**20
"""A page stops before it holds more, content and metadata counted as stored."""

_ITEM_OVERHEAD: Final = 200
"""Bytes of an item beside content and metadata."""

_SCOPED: Final = f"FROM {{schema}}.long_term_memory AS m WHERE m.tenant = $1 AND m.user_id = $2 AND {LIVE}"


_BY_ID: Final = (
    f"SELECT {ITEM_COLUMNS} FROM "
    "(SELECT l.* FROM {schema}.long_term_memory AS l WHERE l.id = ANY($3::bigint[]) OFFSET 0) AS m "
    f"WHERE m.tenant = $1 AND m.user_id = $2 AND {LIVE}"
)
"""By the primary key alone, whatever else there is to choose from: a steady read."""


async def get_by_id(database: Database, scope: Scope, ids: Sequence[str]) -> list[MemoryItem]:
    """The live memories with one of the ids, each once, in no particular order."""
    numbers = [number for text in ids if (number := parse_id(text)) is not None]
    if not numbers:
        return []
    return [item_of(row) for row in await database.read(database.sql(_BY_ID), scope.tenant, scope.user, numbers)]


async def get(
    connection: Connection, database: Database, scope: Scope, ids: Sequence[str], keys: Sequence[str]
) -> list[MemoryItem]:
    """The live memories with one of the ids or keys, each once, in no particular order."""
    numbers = [number for text in ids if (number := parse_id(text)) is not None]
    wanted = [check_text(key, f"keys[{index}]") for index, key in enumerate(keys)]
    binds = Binds(scope.tenant, scope.user)
    conditions = []
    if numbers:
        conditions.append(f"m.id = ANY({binds.add(numbers, 'bigint[]')})")
    if wanted:
        conditions.append(f"m.key = ANY({binds.add(wanted, 'text[]')})")
    if not conditions:
        return []
    statement = f"SELECT {ITEM_COLUMNS} {_SCOPED} AND ({' OR '.join(conditions)})"
    return [item_of(row) for row in await connection.fetch(database.sql(statement), *binds.values)]


async def query(connection: Connection, database: Database, scope: Scope, input: QueryInput) -> QueryOutput:  # noqa: A002
    """One page. Raises UNSUPPORTED_FILTER, UNSUPPORTED_ORDER, INVALID_CURSOR, INVALID_INPUT."""
    binds = Binds(scope.tenant, scope.user)
    conditions = [_SCOPED]
    document = normalise(input["filter"], "filter") if "filter" in input else None
    if document is not None:
        conditions.append(to_sql(parse_filter(document), binds))
    keys = parse_order(input.get("orderBy", ()))
    bound_to = binding(scope, document, keys)
    if "cursor" in input:
        conditions.append(after_sql(keys, decode_cursor(input["cursor"], bound_to, keys), binds))
    limit = input["limit"]
    order = order_sql(keys)
    rows = await connection.fetch(
        database.sql(_page_sql(" AND ".join(conditions), order, binds.add(limit + 1, "bigint"))), *binds.values
    )
    page = rows[:limit]
    output = QueryOutput(items=[item_of(row) for row in page])
    if page and page[0]["total"] > len(page):
        columns = {"createdAt": "created_at", "updatedAt": "updated_at"}
        last = [page[-1][columns.get(key.field.name, key.field.name)] for key in keys]
        output["nextCursor"] = encode_cursor(bound_to, last)
    return output


def _page_sql(source: str, order: str, limit: str) -> str:
    """One row more than the page shows that another page follows; what exceeds its bytes is not sent.

    The sizes of large contents are read without fetching them (octet_length of a stored text).
    """
    size = f"octet_length(m.content) + COALESCE(octet_length(m.metadata::text), 0) + {_ITEM_OVERHEAD}"
    return f"""
SELECT {ITEM_COLUMNS}, m.importance, m.total FROM (
    SELECT m.*, count(*) OVER () AS total, row_number() OVER page AS position, sum({size}) OVER page AS bytes
    FROM (SELECT m.* {source} ORDER BY {order} LIMIT {limit}) AS m
    WINDOW page AS (ORDER BY {order} ROWS UNBOUNDED PRECEDING)
) AS m WHERE m.position = 1 OR m.bytes <= {MAX_PAGE_BYTES} ORDER BY m.position
"""
