"""The filter language evaluated in memory: the meaning that every translation has to keep."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from memplane.contracts import MemoryItem
from memplane.retrieval.filter_tree import TIMES, And, Compare, Contains, Equal, Exists, Field, Filter, Not, Or
from memplane.schema.canonical import JSON
from memplane.schema.ids import parse_id
from memplane.schema.times import parse_time

_ABSENT: Final = object()

_COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}


def matches(filter: Filter, item: MemoryItem) -> bool:  # noqa: A002 - the wire's name
    """Whether a memory satisfies a filter. Metadata must hold normalised JSON."""
    match filter:
        case And(filters):
            return all(matches(part, item) for part in filters)
        case Or(filters):
            return any(matches(part, item) for part in filters)
        case Not(part):
            return not matches(part, item)
        case Equal(field, values):
            return _equal(field, values, _value(field, item))
        case Compare(field, sign, operand):
            return _compare(sign, _comparable(field, _value(field, item)), operand)
        case Exists(field):
            return _value(field, item) is not _ABSENT
        case Contains(field, wanted):
            held = _value(field, item)
            return isinstance(held, list) and any(json_equal(element, wanted) for element in held)


def json_equal(left: JSON, right: JSON) -> bool:
    """JSON equality: numbers by value, booleans are no numbers, objects without regard to order."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(json_equal(left[name], right[name]) for name in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(json_equal, left, right))
    return bool(left == right)


def _equal(field: Field, values: tuple[JSON, ...], held: object) -> bool:
    if held is _ABSENT:
        return False
    if field.column in TIMES:
        instant = parse_time(held)
        return instant is not None and any(parse_time(value) == instant for value in values)
    return any(json_equal(held, value) for value in values)


def _comparable(field: Field, held: object) -> object:
    if field.column == "id":
        return parse_id(held)
    if field.column in TIMES:
        return parse_time(held)
    return held


def _compare(sign: str, held: object, operand: int | float | str | datetime) -> bool:
    if isinstance(held, bool):
        return False
    for kind in ((int, float), str, datetime):
        if isinstance(held, kind) and isinstance(operand, kind):
            return _COMPARISONS[sign](held, operand)
    return False


def _value(field: Field, item: MemoryItem) -> object:
    if field.column is None:
        return _descend(item.get("metadata"), field.path)
    if field.column in ("id", "key", "createdAt", "updatedAt", "version"):
        return item.get(field.column, _ABSENT)
    # The reserved fields; a store that does not validate them may hold anything there.
    return _descend(item.get("metadata"), (field.column,))


def _descend(value: object, path: tuple[str, ...]) -> object:
    for name in path:
        if not isinstance(value, Mapping) or name not in value:
            return _ABSENT
        value = value[name]
    return value
