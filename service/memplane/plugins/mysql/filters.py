"""The filter language as SQL, as far as SQL means the same by it; the rest is decided in memory.

`narrowed` gives a condition that keeps every match, and tells whether it keeps nothing else. Columns are compared
exactly. Metadata is JSON text here (see `schema`), so of its conditions SQL only checks what a match must contain: the
canonical text of `{"a":"x"}` contains `"a":"x"`. Values are always arguments, never part of the text.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from memplane.retrieval.filters import TIMES, And, Compare, Contains, Equal, Exists, Field, Filter, Not, Or
from memplane.schema.canonical import JSON, canonical
from memplane.schema.ids import parse_id
from memplane.schema.times import parse_time

_COLUMNS: Final = {
    "id": "m.id",
    "key": "m.`key`",
    "createdAt": "m.created_at",
    "updatedAt": "m.updated_at",
    "version": "m.version",
    "importance": "m.importance",
    "category": "m.category",
    "slot_hint": "m.slot_hint",
    "expires_at": "m.expires_at",
}
_SIGNS: Final = {"$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Condition:
    """SQL on `memplane_memory AS m` with its arguments; `exact` when it lets nothing else through."""

    text: str
    arguments: tuple[object, ...] = ()
    exact: bool = True


TRUE: Final = Condition("TRUE")
FALSE: Final = Condition("FALSE")


def microseconds(moment: datetime) -> int:
    """Microseconds since 1970, exact."""
    return (moment - _EPOCH) // _MICROSECOND


def moment(value: int) -> datetime:
    """The aware time of microseconds since 1970."""
    return _EPOCH + value * _MICROSECOND


def narrowed(filter: Filter | None) -> Condition:  # noqa: A002 - the wire's name
    """A condition that no match fails."""
    if filter is None:
        return TRUE
    return _narrowed(filter) or Condition("TRUE", (), exact=False)


def _narrowed(filter: Filter) -> Condition | None:  # noqa: A002
    match filter:
        case And(filters):
            return _all([_narrowed(part) for part in filters])
        case Or(filters):
            return _any([_narrowed(part) for part in filters])
        case Not(part):
            inner = _narrowed(part)
            return Condition(f"(NOT {inner.text})", inner.arguments) if inner is not None and inner.exact else None
        case Exists(field):
            return _exists(field)
        case Equal(field, values):
            return _equal_metadata(field, values) if field.column is None else _equal_column(field.column, values)
        case Compare(field, sign, operand):
            if field.column is None:
                return _mentions(f"{canonical(field.path[-1])}:")
            return _compare(field.column, sign, operand)
        case Contains(field, value):
            return _contains(field, value)


def _all(parts: list[Condition | None]) -> Condition:
    """What SQL cannot say of a conjunction is left to memory."""
    known = [part for part in parts if part is not None]
    if not known:
        return Condition("TRUE", (), exact=not parts)
    exact = len(known) == len(parts) and all(part.exact for part in known)
    return Condition(f"({' AND '.join(part.text for part in known)})", _arguments(known), exact)


def _any(parts: list[Condition | None]) -> Condition | None:
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    if not known:
        return FALSE
    exact = all(part.exact for part in known)
    return Condition(f"({' OR '.join(part.text for part in known)})", _arguments(known), exact)


def _arguments(parts: list[Condition]) -> tuple[object, ...]:
    return tuple(argument for part in parts for argument in part.arguments)


def _mentions(text: str) -> Condition:
    return Condition("COALESCE(LOCATE(%s, m.metadata) > 0, FALSE)", (text,), exact=False)


def _exists(field: Field) -> Condition | None:
    if field.column is None:
        return _mentions(f"{canonical(field.path[-1])}:")
    if field.column == "tags":
        return _mentions('"tags":')
    return Condition(f"({_COLUMNS[field.column]} IS NOT NULL)")


def _equal_metadata(field: Field, values: tuple[JSON, ...]) -> Condition | None:
    name = canonical(field.path[-1])
    # Numbers have several spellings, and so have the objects and arrays that hold them.
    texts = {
        f"{name}:{canonical(value)}" if value is None or isinstance(value, bool | str) else f"{name}:"
        for value in values
    }
    return _any([_mentions(text) for text in sorted(texts)])


def _equal_column(column: str, values: tuple[JSON, ...]) -> Condition | None:
    """Only values of the column's own type can be equal to it."""
    if column == "tags":
        return _mentions('"tags":')
    convert = _converter(column)
    found = [converted for value in values if (converted := convert(value)) is not None]
    if not found:
        return FALSE
    return Condition(f"COALESCE({_COLUMNS[column]} IN %s, FALSE)", (tuple(found),))


def _converter(column: str) -> Callable[[JSON], object]:
    if column == "id":
        return parse_id
    if column in TIMES:
        return lambda value: None if (instant := parse_time(value)) is None else microseconds(instant)
    if column == "importance":
        return lambda value: float(value) if _is_number(value) and 0 <= value <= 1 else None
    if column == "version":
        return lambda value: int(value) if _is_number(value) and 0 <= value <= _MAX and value == int(value) else None
    return lambda value: value.encode() if isinstance(value, str) else None


def _compare(column: str, operator: str, operand: int | float | str | datetime) -> Condition:
    value: object
    if isinstance(operand, datetime):
        value = microseconds(operand)
    elif isinstance(operand, str):
        value = operand.encode()
    elif column == "importance":
        # Importance is within 0..1, so anything beyond compares like these.
        value = float(min(max(operand, -1), 2))
    else:
        value = _whole(operator, operand)
    return Condition(f"COALESCE({_COLUMNS[column]} {_SIGNS[operator]} %s, FALSE)", (value,))


def _whole(operator: str, operand: int | float) -> int:
    """The whole number that compares with whole numbers as `operand` does; beyond 64 bits, the last one."""
    number = math.floor(operand) if operator in ("$gt", "$lte") else math.ceil(operand)
    return min(max(number, -_MAX), _MAX)


def _contains(field: Field, value: JSON) -> Condition | None:
    if field.column is not None and field.column != "tags":
        return FALSE
    if isinstance(value, str):
        return _mentions(canonical(value))
    return FALSE if field.column == "tags" else _mentions(f"{canonical(field.path[-1])}:")


def _is_number(value: JSON) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
