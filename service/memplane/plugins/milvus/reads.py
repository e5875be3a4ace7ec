"""GET, QUERY and SEARCH.

Milvus neither sorts nor compares JSON as the contract wants: its filter narrows what is read, and the contract's own
evaluator decides. Ascending ids are read in windows from the cursor on; every other order reads the scope's matching
rows, without bodies, and sorts them here, up to `MAX_SORTED`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from memplane.contracts import JSON, MemoryItem, QueryInput, QueryOutput, Scope, SearchHit
from memplane.errors import PluginError
from memplane.plugins.inmemory.paging import Descending
from memplane.plugins.milvus.collection import WINDOW, Collection, alive, scoped
from memplane.plugins.milvus.rows import Row, memory_of, view_of
from memplane.plugins.postgres.cursor import binding, decode_cursor, encode_cursor
from memplane.plugins.postgres.order import SortKey, SortValue, parse_order
from memplane.plugins.search.milvus_filter import to_milvus
from memplane.projections.milvus_search import MAX_HITS
from memplane.retrieval.filters import Filter, matches, parse_filter
from memplane.schema.canonical import check_text, normalise
from memplane.schema.ids import parse_id
from memplane.schema.times import parse_time

MAX_PAGE_BYTES: Final = 16 * 2**20
"""A page stops before it holds more, content and metadata counted as stored."""

MAX_SCANNED: Final = 100_000
"""Rows that one page looks at, in ascending order of ids. Without a match among them the filter is refused."""

MAX_SORTED: Final = 100_000
"""Rows that another order sorts."""

MAX_SELECTED: Final = 10_000
"""Memories that a search's filter may select when Milvus cannot express it."""


async def get(collection: Collection, scope: Scope, ids: Sequence[str], keys: Sequence[str]) -> list[MemoryItem]:
    """The live memories with one of the ids or keys, each once, in no particular order."""
    numbers = [number for text in ids if (number := parse_id(text)) is not None]
    wanted = [check_text(key, f"keys[{index}]") for index, key in enumerate(keys)]
    rows = await collection.find_ids(scope, numbers) if numbers else {}
    for row in await collection.find_keys(scope, [key for key in wanted if key], live=True):
        rows[row["memory_id"]] = row
    return [memory_of(row).item() for row in await collection.bodies(list(rows.values()))]


class Query:
    """One page of a QUERY. Raises UNSUPPORTED_FILTER, UNSUPPORTED_ORDER, INVALID_CURSOR, INVALID_INPUT."""

    def __init__(self, collection: Collection, scope: Scope, request: QueryInput) -> None:
        document: Mapping[str, JSON] | None = normalise(request["filter"], "filter") if "filter" in request else None
        self._collection = collection
        self._scope = scope
        self._filter = None if document is None else parse_filter(document)
        self._keys = parse_order(request.get("orderBy", ()))
        self._bound_to = binding(scope, document, self._keys)
        self._limit = request["limit"]
        self._after = decode_cursor(request["cursor"], self._bound_to, self._keys) if "cursor" in request else None

    async def page(self) -> QueryOutput:
        if self._keys[0].field.name == "id" and not self._keys[0].descending:
            return await self._by_id()
        return await self._sorted()

    async def _by_id(self) -> QueryOutput:
        after = 0 if self._after is None else self._after[0]
        assert isinstance(after, int)
        page: list[Row] = []
        window = min(self._limit + 1, WINDOW) if self._filter is None else WINDOW
        scanned = 0
        while True:
            rows = await self._collection.find(self._scope, narrowed(self._filter), after=after, limit=window)
            page += await matching(self._collection, rows, self._filter)
            if len(page) > self._limit or len(rows) < window:
                return await self._output(page)
            after, scanned = rows[-1]["memory_id"], scanned + len(rows)
            if scanned >= MAX_SCANNED:
                if not page:
                    raise PluginError(
                        "UNSUPPORTED_FILTER", f"None of the first {MAX_SCANNED} memories matches; narrow the filter"
                    )
                return await self._output(page, [after])

    async def _sorted(self) -> QueryOutput:
        rows = await select(self._collection, self._scope, self._filter, MAX_SORTED, "UNSUPPORTED_ORDER")
        if self._after is not None:
            place = self._sortable(self._after)
            rows = [row for row in rows if self._sortable(_values(self._keys, row)) > place]
        return await self._output(sorted(rows, key=lambda row: self._sortable(_values(self._keys, row))))

    async def _output(self, rows: Sequence[Row], scanned_to: Sequence[SortValue] | None = None) -> QueryOutput:
        """The page of `rows`, which follow each other in the order asked for."""
        page = _within(rows[: self._limit])
        items = [memory_of(row).item() for row in await self._collection.bodies(page)]
        output = QueryOutput(items=items)
        if len(page) < len(rows):
            output["nextCursor"] = encode_cursor(self._bound_to, _values(self._keys, page[-1]))
        elif scanned_to is not None:
            output["nextCursor"] = encode_cursor(self._bound_to, scanned_to)
        return output

    def _sortable(self, values: Sequence[SortValue]) -> tuple[Any, ...]:
        # What is absent comes last in either direction.
        return tuple(
            (value is None, Descending(value) if key.descending and value is not None else value)
            for value, key in zip(values, self._keys, strict=True)
        )


def narrowed(filter: Filter | None) -> str:  # noqa: A002 - the wire's name
    """A Milvus expression that no live match fails."""
    expression = None if filter is None else to_milvus(filter)
    # Rows whose metadata Milvus cannot hold as it is are let through.
    return alive() if expression is None else f"{alive()} and (whole == false or {expression})"


async def matching(collection: Collection, rows: Sequence[Row], filter: Filter | None) -> list[Row]:  # noqa: A002
    """The rows that satisfy the filter."""
    if filter is None or not rows:
        return list(rows)
    return [row for row in await collection.metadata(rows) if matches(filter, view_of(row))]


async def select(
    collection: Collection,
    scope: Scope,
    filter: Filter | None,  # noqa: A002
    limit: int,
    code: str,
) -> list[Row]:
    """All live rows of the scope that satisfy the filter. Raises `code` when more than `limit` have to be looked at."""
    found: list[Row] = []
    after = looked_at = 0
    while True:
        rows = await collection.find(scope, narrowed(filter), after=after)
        found += await matching(collection, rows, filter)
        looked_at += len(rows)
        if len(rows) < WINDOW:
            return found
        if looked_at >= limit:
            raise PluginError(code, f"More than {limit} memories would have to be looked at; narrow the filter")
        after = rows[-1]["memory_id"]


async def search(
    collection: Collection,
    scope: Scope,
    vector: Sequence[float],
    filter: Filter | None,  # noqa: A002
    limit: int,
) -> list[SearchHit]:
    """The nearest live memories that satisfy the filter, best first. Raises UNSUPPORTED_FILTER."""
    condition = f"{scoped(scope)} and {narrowed(filter)}"
    if filter is not None and to_milvus(filter) is None:
        rows = await select(collection, scope, filter, MAX_SELECTED, "UNSUPPORTED_FILTER")
        if not rows:
            return []
        condition = f"{condition} and memory_id in {[row['memory_id'] for row in rows]}"
    wanted = min(limit, MAX_HITS)
    while True:
        hits = await collection.nearest(vector, condition, wanted)
        passed = {row["memory_id"] for row in await matching(collection, [row for row, _ in hits], filter)}
        if len(passed) >= limit or len(hits) < wanted or wanted == MAX_HITS:
            break
        # The filter lets through more than it should: look further.
        wanted = min(wanted * 4, MAX_HITS)
    best = [(row, score) for row, score in hits if row["memory_id"] in passed][:limit]
    bodies = {row["memory_id"]: row for row in await collection.bodies([row for row, _ in best])}
    return [
        SearchHit(memory=memory_of(bodies[row["memory_id"]]).item(), score=score)
        for row, score in best
        if row["memory_id"] in bodies
    ]


def _values(keys: Sequence[SortKey], row: Row) -> list[SortValue]:
    known: dict[str, SortValue] = {
        "id": row["memory_id"],
        "key": row["key"] or None,
        "version": row["version"],
        "importance": None if row["importance"] < 0 else row["importance"],
    }
    if any(key.field.name in ("createdAt", "updatedAt") for key in keys):
        view = view_of({**row, "metadata0": "", "metadata1": ""})
        known["createdAt"] = parse_time(view["createdAt"])
        known["updatedAt"] = parse_time(view["updatedAt"])
    return [known[key.field.name] for key in keys]


def _within(rows: Sequence[Row]) -> list[Row]:
    """The rows that fit on a page; at least the first."""
    used = 0
    for count, row in enumerate(rows):
        used += row["size"]
        if count and used > MAX_PAGE_BYTES:
            return list(rows[:count])
    return list(rows)
