"""The filter language as SQL. Values and names are always bound, never part of the text.

Every translated condition is true or false, never NULL, so that `$not` negates it. Text compares by code point
(`COLLATE "C"` in a UTF-8 database), numbers as decimals.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Final

from memplane.retrieval.filters import NUMBERS, TIMES, And, Compare, Contains, Equal, Exists, Field, Filter, Not, Or
from memplane.schema.canonical import JSON, canonical
from memplane.schema.ids import parse_id
from memplane.schema.times import parse_time

_COLUMNS: Final = {
    "id": "m.id",
    "key": "m.key",
    "createdAt": "m.created_at",
    "updatedAt": "m.updated_at",
    "version": "m.version",
    "importance": "m.importance",
    "category": "m.category",
    "tags": "m.tags",
    "slot_hint": "m.slot_hint",
    "expires_at": "m.expires_at",
}
_SIGNS: Final = {"$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}


class Binds:
    """The arguments of a statement under construction."""

    def __init__(self, *values: object) -> None:
        self.values: list[object] = list(values)

    def add(self, value: object, type_name: str) -> str:
        """Bind one more value; returns its typed placeholder."""
        self.values.append(value)
        return f"${len(self.values)}::{type_name}"


def to_sql(filter: Filter, binds: Binds) -> str:  # noqa: A002 - the wire's name
    """A condition on `long_term_memory AS m`, in parentheses; its values are added to `binds`."""
    match filter:
        case And(filters):
            return _joined([to_sql(part, binds) for part in filters], " AND ", "TRUE")
        case Or(filters):
            return _joined([to_sql(part, binds) for part in filters], " OR ", "FALSE")
        case Not(part):
            return f"(NOT {to_sql(part, binds)})"
        case Exists(field):
            return f"({_operand(field, binds)} IS NOT NULL)"
        case Equal(field, values):
            condition = _equal_metadata if field.column is None else _equal_column
            return f"COALESCE({condition(field, values, binds)}, FALSE)"
        case Compare(field, sign, operand):
            return f"COALESCE({_compare(field, _SIGNS[sign], operand, binds)}, FALSE)"
        case Contains(field, value):
            return f"COALESCE({_contains(field, value, binds)}, FALSE)"


def _joined(parts: list[str], word: str, empty: str) -> str:
    return f"({word.join(parts)})" if parts else empty


def _operand(field: Field, binds: Binds) -> str:
    """The column, or the metadata value as jsonb. `->` with a name never reaches into an array, unlike `#>`."""
    if field.column is not None:
        return _COLUMNS[field.column]
    return "(m.metadata" + "".join(f" -> {binds.add(name, 'text')}" for name in field.path) + ")"


def _equal_metadata(field: Field, values: tuple[JSON, ...], binds: Binds) -> str:
    wanted = [canonical(value) for value in values]
    operand = _operand(field, binds)
    if len(wanted) == 1:
        return f"{operand} = {binds.add(wanted[0], 'jsonb')}"
    return f"{operand} = ANY({binds.add(wanted, 'jsonb[]')})"


def _equal_column(field: Field, values: tuple[JSON, ...], binds: Binds) -> str:
    """Only values of the column's own type can be equal to it."""
    assert field.column is not None
    if field.column == "tags":
        wanted = [value for value in values if _is_strings(value)]
        if len(wanted) == 1:
            return f"m.tags = {binds.add(wanted[0], 'text[]')}"
        # PostgreSQL has no array of arrays of different lengths, and one argument each would be too many.
        return f"to_jsonb(m.tags) = ANY({binds.add([canonical(value) for value in wanted], 'jsonb[]')})"
    type_name, convert = _column_type(field.column)
    found = [converted for value in values if (converted := convert(value)) is not None]
    return f"{_typed(field.column)} = ANY({binds.add(found, f'{type_name}[]')})"


def _column_type(column: str) -> tuple[str, Callable[[JSON], object]]:
    if column == "id":
        return "bigint", parse_id
    if column in TIMES:
        return "timestamptz", parse_time
    if column == "importance":
        return "float8", _float
    if column == "version":
        return "numeric", _decimal
    return "text", lambda value: value if isinstance(value, str) else None


def _typed(column: str) -> str:
    return "m.version::numeric" if column == "version" else _COLUMNS[column]


def _compare(field: Field, sign: str, operand: int | float | str | datetime, binds: Binds) -> str:
    if field.column is None:
        return _compare_metadata(field, sign, operand, binds)
    type_name, _ = _column_type(field.column)
    value: object = operand
    if field.column in NUMBERS:
        value = _decimal(operand) if field.column == "version" else _float(operand)
    collation = ' COLLATE "C"' if type_name == "text" else ""
    return f"{_typed(field.column)}{collation} {sign} {binds.add(value, type_name)}"


def _compare_metadata(field: Field, sign: str, operand: int | float | str | datetime, binds: Binds) -> str:
    # CASE keeps the cast from being tried on other types.
    value = _operand(field, binds)
    if isinstance(operand, str):
        text = f'({value} #>> ARRAY[]::text[]) COLLATE "C" {sign} {binds.add(operand, "text")}'
        return f"CASE WHEN jsonb_typeof({value}) = 'string' THEN {text} ELSE FALSE END"
    number = f"({value} #>> ARRAY[]::text[])::numeric {sign} {binds.add(_decimal(operand), 'numeric')}"
    return f"CASE WHEN jsonb_typeof({value}) = 'number' THEN {number} ELSE FALSE END"


def _contains(field: Field, value: JSON, binds: Binds) -> str:
    if field.column == "tags":
        return f"m.tags @> ARRAY[{binds.add(value, 'text')}]" if isinstance(value, str) else "FALSE"
    if field.column is not None:
        return "FALSE"
    operand = _operand(field, binds)
    wanted = binds.add(canonical(value), "jsonb")
    elements = f"CASE WHEN jsonb_typeof({operand}) = 'array' THEN {operand} ELSE '[]'::jsonb END"
    return f"EXISTS (SELECT FROM jsonb_array_elements({elements}) AS e (value) WHERE e.value = {wanted})"


def _is_strings(value: JSON) -> bool:
    return isinstance(value, list) and all(isinstance(part, str) for part in value)


def _decimal(value: JSON) -> Decimal | None:
    """The decimal that jsonb holds for this number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return Decimal(repr(value)) if isinstance(value, float) else Decimal(value)


def _float(value: JSON) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
