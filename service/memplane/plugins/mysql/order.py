"""The order of a QUERY in SQL: as in the PostgreSQL store, total, and what is absent comes last in both directions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from memplane.plugins.mysql.filters import FALSE, Condition, microseconds
from memplane.plugins.postgres.order import SortKey, SortValue

_COLUMNS: Final = {
    "id": "m.id",
    "key": "m.`key`",
    "createdAt": "m.created_at",
    "updatedAt": "m.updated_at",
    "importance": "m.importance",
    "version": "m.version",
}


def order_sql(keys: Sequence[SortKey]) -> str:
    """The ORDER BY list. MySQL puts NULL first, so nullable fields are sorted by their absence first."""
    parts: list[str] = []
    for key in keys:
        column = _COLUMNS[key.field.name]
        if key.field.nullable:
            parts.append(f"{column} IS NULL")
        parts.append(column + (" DESC" if key.descending else ""))
    return ", ".join(parts)


def after_sql(keys: Sequence[SortKey], values: Sequence[SortValue]) -> Condition:
    """The condition of rows that come after the row whose sort values are given."""
    alternatives: list[Condition] = []
    equal: list[Condition] = []
    for key, value in zip(keys, values, strict=True):
        column, argument = _COLUMNS[key.field.name], _argument(value)
        if value is not None:
            sign = "<" if key.descending else ">"
            beyond = f"{column} {sign} %s"
            if key.field.nullable:
                beyond = f"({beyond} OR {column} IS NULL)"
            alternatives.append(_joined([*equal, Condition(beyond, (argument,))], " AND "))
            equal.append(Condition(f"{column} = %s", (argument,)))
        else:
            equal.append(Condition(f"{column} IS NULL"))
    return _joined(alternatives, " OR ") if alternatives else FALSE


def _joined(parts: Sequence[Condition], word: str) -> Condition:
    return Condition(
        "(" + word.join(part.text for part in parts) + ")",
        tuple(argument for part in parts for argument in part.arguments),
    )


def _argument(value: SortValue) -> object:
    if isinstance(value, datetime):
        return microseconds(value)
    return value.encode() if isinstance(value, str) else value
