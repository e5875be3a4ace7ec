"""Pages of the in-memory store: the order and the cursors of the PostgreSQL store, applied to rows in memory.

A page continues after the sort values of the last row of the page before, whatever was written meanwhile: a row that
neither changed nor was created since page one appears exactly once.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from memplane.contracts import QueryInput, Scope
from memplane.plugins.inmemory.rows import Row
from memplane.plugins.postgres.cursor import binding, decode_cursor, encode_cursor
from memplane.plugins.postgres.order import SortValue, parse_order
from memplane.schema.canonical import normalise

MAX_PAGE_SIZE: Final = 16 * 2**20
"""Characters of content and metadata on one page; it stops there, never before its first row."""

VALUES: Final[dict[str, Callable[[Row], SortValue]]] = {
    "id": lambda row: row.id,
    "key": lambda row: row.key,
    "createdAt": lambda row: row.created_at,
    "updatedAt": lambda row: row.updated_at,
    "importance": lambda row: row.reserved.importance,
    "version": lambda row: row.version,
}


class Descending:
    """A value that sorts the other way round."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Descending) and bool(self.value == other.value)

    def __hash__(self) -> int:
        return hash(self.value)

    def __lt__(self, other: Descending) -> bool:
        return bool(other.value < self.value)

    def __gt__(self, other: Descending) -> bool:
        return bool(other.value > self.value)


class Paging:
    """One query's order and place. Raises UNSUPPORTED_ORDER, INVALID_CURSOR."""

    def __init__(self, scope: Scope, request: QueryInput) -> None:
        self._keys = parse_order(request.get("orderBy", ()))
        document = normalise(request["filter"], "filter") if "filter" in request else None
        self._bound_to = binding(scope, document, self._keys)
        self._limit = request["limit"]
        self._after: tuple[Any, ...] | None = None
        if "cursor" in request:
            self._after = self._sortable(decode_cursor(request["cursor"], self._bound_to, self._keys))

    def page(self, rows: Iterable[Row]) -> tuple[list[Row], str | None]:
        """The rows of this page in order, and the cursor of the next one if there is any."""
        after = self._after
        following = rows if after is None else (row for row in rows if self._sortable(self._values(row)) > after)
        found = heapq.nsmallest(self._limit + 1, following, key=lambda row: self._sortable(self._values(row)))
        count = _within(found[: self._limit])
        if count == len(found):
            return found, None
        return found[:count], encode_cursor(self._bound_to, self._values(found[count - 1]))

    def _values(self, row: Row) -> list[SortValue]:
        return [VALUES[key.field.name](row) for key in self._keys]

    def _sortable(self, values: Sequence[SortValue]) -> tuple[Any, ...]:
        # What is absent comes last in either direction.
        return tuple(
            (value is None, Descending(value) if key.descending and value is not None else value)
            for value, key in zip(values, self._keys, strict=True)
        )


def _within(rows: Sequence[Row]) -> int:
    """How many of the rows fit on a page."""
    total = 0
    for count, row in enumerate(rows):
        total += row.size
        if count and total > MAX_PAGE_SIZE:
            return count
    return len(rows)
