"""GET and QUERY. What SQL cannot decide about a filter is decided here, over a bounded number of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from memplane.contracts import JSON, MemoryItem, QueryInput, QueryOutput, Scope
from memplane.errors import PluginError
from memplane.plugins.mysql.filters import Condition, moment, narrowed
from memplane.plugins.mysql.order import after_sql, order_sql
from memplane.plugins.mysql.pool import Row, Session
from memplane.plugins.mysql.rows import COLUMNS, ITEM, SCOPED, item_of, read_items, scope_arguments, stored
from memplane.plugins.postgres.cursor import binding, decode_cursor, encode_cursor
from memplane.plugins.postgres.order import SortKey, SortValue, parse_order
from memplane.retrieval.filters import Filter, matches, parse_filter
from memplane.schema.canonical import check_text, normalise
from memplane.schema.ids import parse_id

MAX_PAGE_BYTES: Final = 16 * 2**20
"""A page stops before it holds more, content and metadata counted as stored."""

WINDOW: Final = 1000
"""Rows read at a time when a filter is decided here."""

MAX_SCANNED: Final = 100_000
"""Rows that one page looks at. A page that found something ends there with a cursor; one without is refused."""


async def get(session: Session, scope: Scope, ids: Sequence[str], keys: Sequence[str]) -> list[MemoryItem]:
    """The live memories with one of the ids or keys, each once, in no particular order."""
    numbers = tuple(number for text in ids if (number := parse_id(text)) is not None)
    wanted = tuple(check_text(key, f"keys[{index}]").encode() for index, key in enumerate(keys))
    found: dict[int, MemoryItem] = {}
    for condition, values in (("m.id IN %s", numbers), ("m.`key` IN %s", wanted)):
        if values:
            statement = f"SELECT {ITEM} FROM memplane_memory AS m WHERE {SCOPED} AND {condition}"
            for row in await session.rows(statement, [*scope_arguments(scope), values]):
                found[row[0]] = item_of(row)
    return list(found.values())


@dataclass(frozen=True, slots=True)
class Plan:
    """A QUERY, checked. `bound_to` is what its cursors belong to; `residual` is left when SQL cannot say it all."""

    keys: tuple[SortKey, ...]
    bound_to: str
    limit: int
    condition: Condition
    residual: Filter | None
    after: list[SortValue] | None


def plan(scope: Scope, request: QueryInput) -> Plan:
    """Raises UNSUPPORTED_FILTER, UNSUPPORTED_ORDER, INVALID_CURSOR, INVALID_INPUT. No I/O."""
    document: Mapping[str, JSON] | None = normalise(request["filter"], "filter") if "filter" in request else None
    parsed = None if document is None else parse_filter(document)
    condition = narrowed(parsed)
    keys = parse_order(request.get("orderBy", ()))
    bound_to = binding(scope, document, keys)
    after = decode_cursor(request["cursor"], bound_to, keys) if "cursor" in request else None
    return Plan(keys, bound_to, request["limit"], condition, None if condition.exact else parsed, after)


async def query(session: Session, scope: Scope, plan: Plan) -> QueryOutput:
    """One page; `session` must see one snapshot."""
    page: list[Row] = []
    after, scanned, used = plan.after, 0, 0
    window = plan.limit + 1 if plan.residual is None else WINDOW
    more = True
    while more:
        rows = await _window(session, scope, plan, after, window)
        more = False
        for row in rows:
            if plan.residual is None or matches(plan.residual, stored(row).item("", False)):
                used += row[6]
                if len(page) == plan.limit or (page and used > MAX_PAGE_BYTES):
                    return await _output(session, scope, plan, page, _values(plan.keys, page[-1]))
                page.append(row)
        scanned += len(rows)
        if len(rows) == window:
            after, more = _values(plan.keys, rows[-1]), True
            if scanned >= MAX_SCANNED:
                if not page:
                    raise PluginError(
                        "UNSUPPORTED_FILTER", f"None of the first {MAX_SCANNED} memories matches; narrow the filter"
                    )
                return await _output(session, scope, plan, page, after)
    return await _output(session, scope, plan, page, None)


async def _window(
    session: Session, scope: Scope, plan: Plan, after: Sequence[SortValue] | None, window: int
) -> list[Row]:
    conditions = [Condition(SCOPED, scope_arguments(scope)), plan.condition]
    if after is not None:
        conditions.append(after_sql(plan.keys, after))
    where = " AND ".join(condition.text for condition in conditions)
    arguments: list[Any] = [argument for condition in conditions for argument in condition.arguments]
    statement = (
        f"SELECT {COLUMNS}, m.size, m.importance FROM memplane_memory AS m WHERE {where} "
        f"ORDER BY {order_sql(plan.keys)} LIMIT %s"
    )
    return await session.rows(statement, [*arguments, window])


def _values(keys: Sequence[SortKey], row: Row) -> list[SortValue]:
    kept = stored(row)
    known: dict[str, SortValue] = {
        "id": kept.memory_id,
        "key": kept.key,
        "createdAt": moment(kept.created_at),
        "updatedAt": moment(kept.updated_at),
        "importance": row[7],
        "version": kept.version,
    }
    return [known[key.field.name] for key in keys]


async def _output(
    session: Session, scope: Scope, plan: Plan, page: Sequence[Row], after: Sequence[SortValue] | None
) -> QueryOutput:
    items = await read_items(session, scope, [row[0] for row in page])
    # A row that expired between both statements is gone.
    output = QueryOutput(items=[items[row[0]] for row in page if row[0] in items])
    if after is not None:
        output["nextCursor"] = encode_cursor(plan.bound_to, after)
    return output
