"""The order of a QUERY and the keyset condition that continues after a row.

Every order is total: `id` breaks ties, in the direction of the last field. NULL comes last in both directions. Text
compares by code point, so that the order does not depend on the database's locale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from memplane.contracts import JSON
from memplane.errors import PluginError
from memplane.plugins.postgres.filters import Binds

SortValue = int | float | str | datetime | None


@dataclass(frozen=True, slots=True)
class SortField:
    """A field that may be sorted by."""

    name: str
    expression: str
    type_name: str
    nullable: bool = False


_FIELDS: Final = {
    field.name: field
    for field in (
        SortField("id", "m.id", "bigint"),
        SortField("key", 'm.key COLLATE "C"', "text", nullable=True),
        SortField("createdAt", "m.created_at", "timestamptz"),
        SortField("updatedAt", "m.updated_at", "timestamptz"),
        SortField("importance", "m.importance", "float8", nullable=True),
        SortField("version", "m.version", "bigint"),
    )
}
ORDER_FIELDS: Final = tuple(_FIELDS)


@dataclass(frozen=True, slots=True)
class SortKey:
    field: SortField
    descending: bool


def parse_order(order_by: Sequence[Mapping[str, JSON]]) -> tuple[SortKey, ...]:
    """The total order that `orderBy` asks for. Raises UNSUPPORTED_ORDER naming the field."""
    keys: dict[str, SortKey] = {}
    for entry in order_by:
        field = _FIELDS.get(entry["field"])
        if field is None:
            shown = entry["field"] if len(entry["field"]) <= 80 else entry["field"][:77] + "..."
            raise PluginError("UNSUPPORTED_ORDER", f"Cannot order by {shown!r}; known: {', '.join(ORDER_FIELDS)}")
        keys.setdefault(field.name, SortKey(field, entry.get("direction", "asc") == "desc"))
        if field.name == "id":
            break
    if "id" not in keys:
        last = list(keys.values())[-1].descending if keys else False
        keys["id"] = SortKey(_FIELDS["id"], last)
    return tuple(keys.values())


def order_sql(keys: Sequence[SortKey]) -> str:
    """The ORDER BY list. NULLS LAST is spelled out only where it changes something, so that indexes fit."""
    return ", ".join(
        key.field.expression + (" DESC" if key.descending else "") + (" NULLS LAST" if key.field.nullable else "")
        for key in keys
    )


def after_sql(keys: Sequence[SortKey], values: Sequence[SortValue], binds: Binds) -> str:
    """The condition of rows that come after the row whose sort values are given."""
    placeholders = [
        None if value is None else binds.add(value, key.field.type_name)
        for key, value in zip(keys, values, strict=True)
    ]
    if len({key.descending for key in keys}) == 1 and not any(key.field.nullable for key in keys):
        sign = "<" if keys[0].descending else ">"
        left = ", ".join(key.field.expression for key in keys)
        return f"(({left}) {sign} ({', '.join(str(p) for p in placeholders)}))"
    alternatives: list[str] = []
    equal: list[str] = []
    for key, placeholder in zip(keys, placeholders, strict=True):
        beyond = _beyond(key, placeholder)
        if beyond is not None:
            alternatives.append("(" + " AND ".join([*equal, beyond]) + ")")
        expression = key.field.expression
        equal.append(f"{expression} IS NULL" if placeholder is None else f"{expression} = {placeholder}")
    return "(" + " OR ".join(alternatives) + ")"


def _beyond(key: SortKey, placeholder: str | None) -> str | None:
    """Strictly after the value in this field alone; None when nothing can be (NULL is last)."""
    if placeholder is None:
        return None
    comparison = f"{key.field.expression} {'<' if key.descending else '>'} {placeholder}"
    return f"({comparison} OR {key.field.expression} IS NULL)" if key.field.nullable else comparison
