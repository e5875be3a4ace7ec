"""The filter language of QUERY and SEARCH: parsed once, then translated by each plugin (design section 5).

A filter is an object; all its members must hold. A member is a condition on a field, or `$and` / `$or` (a list of
filters) or `$not` (a filter). A condition is a JSON value (equality) or an object of operators:

    $eq $ne              JSON equality: 1 = 1.0, but 1 ≠ "1" ≠ true; null equals only a null that is present
    $gt $gte $lt $lte    numbers with numbers, strings with strings (by code point), times with times
    $in                  equality with one of a list
    $exists              true: the field is present (null included)
    $contains            an array that has an element equal to the value

A bare name that is a column (`COLUMNS`) means the column, any other name the metadata; `metadata.x` always means the
metadata, dots descend into objects (`a.b`). A comparison of different types is false, and so is any comparison of an
absent field; `$ne` is the negation of `$eq`, so it holds for an absent one. `id` compares in numeric order.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final, cast

from memplane.errors import PluginError
from memplane.retrieval.filter_matches import json_equal, matches
from memplane.retrieval.filter_tree import (
    COLUMNS,
    NUMBERS,
    OPERATORS,
    ORDERED,
    TIMES,
    And,
    Column,
    Compare,
    Contains,
    Equal,
    Exists,
    Field,
    Filter,
    Not,
    Or,
    Order,
)
from memplane.schema.canonical import JSON, canonical, invalid, normalise
from memplane.schema.ids import parse_id
from memplane.schema.times import parse_time

__all__ = [
    "COLUMNS",
    "NUMBERS",
    "OPERATORS",
    "TIMES",
    "And",
    "Compare",
    "Contains",
    "Equal",
    "Exists",
    "Field",
    "Filter",
    "Not",
    "Or",
    "json_equal",
    "matches",
    "parse_filter",
]

MAX_DEPTH: Final = 16
MAX_CONDITIONS: Final = 1000
MAX_BYTES: Final = 2**20
MAX_PATH: Final = 100
"""Names of one path into the metadata: values are not nested deeper."""
MAX_NAMES: Final = 10_000
"""Names in all paths of a filter together: each may become an argument of a statement, which are bounded."""


def parse_filter(document: Mapping[str, JSON]) -> Filter:
    """The filter that `document` describes.

    Raises `PluginError`: `UNSUPPORTED_FILTER` for what the language does not have, `INVALID_INPUT` for values that no
    memory can hold and for filters that are too large.
    """
    if not isinstance(document, Mapping):
        invalid("filter must be an object")
    normal = normalise(document, "filter")
    if len(canonical(normal).encode()) > MAX_BYTES:
        invalid(f"filter must not be larger than {MAX_BYTES} bytes as JSON")
    return _Parser().filter(normal, 1)


def _unsupported(message: str) -> PluginError:
    return PluginError("UNSUPPORTED_FILTER", message)


def _shown(name: str) -> str:
    return repr(name if len(name) <= 80 else name[:77] + "...")


class _Parser:
    """Counts conditions and names of paths while it descends."""

    def __init__(self) -> None:
        self._conditions = 0
        self._names = 0

    def filter(self, document: JSON, depth: int) -> Filter:
        if not isinstance(document, dict):
            raise _unsupported("a filter must be an object")
        if depth > MAX_DEPTH:
            invalid(f"filter must not be nested more than {MAX_DEPTH} levels deep")
        return _all([part for name, value in document.items() for part in self._member(name, value, depth)])

    def _member(self, name: str, value: JSON, depth: int) -> list[Filter]:
        if name in ("$and", "$or"):
            if not isinstance(value, list):
                raise _unsupported(f"{name} takes a list of filters")
            filters = tuple(self.filter(part, depth + 1) for part in value)
            return [And(filters) if name == "$and" else Or(filters)]
        if name == "$not":
            return [Not(self.filter(value, depth + 1))]
        if name.startswith("$"):
            raise _unsupported(f"unknown operator {_shown(name)}")
        return self._conditions_on(_field(name), name, value)

    def _conditions_on(self, field: Field, name: str, value: JSON) -> list[Filter]:
        if not isinstance(value, dict) or not any(operator.startswith("$") for operator in value):
            return [self._condition(field, name, "$eq", value)]
        return [self._condition(field, name, operator, operand) for operator, operand in value.items()]

    def _condition(self, field: Field, name: str, operator: str, operand: JSON) -> Filter:
        self._conditions += 1
        if self._conditions > MAX_CONDITIONS:
            invalid(f"filter must not have more than {MAX_CONDITIONS} conditions")
        self._names += len(field.path)
        if self._names > MAX_NAMES:
            invalid(f"filter must not have more than {MAX_NAMES} names in the paths of its fields")
        if operator == "$eq":
            return Equal(field, (operand,))
        if operator == "$ne":
            return Not(Equal(field, (operand,)))
        if operator in ORDERED:
            return Compare(field, cast(Order, operator), _ordered_operand(field, name, operator, operand))
        if operator == "$in":
            if not isinstance(operand, list):
                raise _unsupported("$in takes a list")
            return Equal(field, tuple(operand))
        if operator == "$exists":
            if not isinstance(operand, bool):
                raise _unsupported("$exists takes true or false")
            return Exists(field) if operand else Not(Exists(field))
        if operator == "$contains":
            return Contains(field, operand)
        raise _unsupported(f"unknown operator {_shown(operator)}")


def _all(filters: list[Filter]) -> Filter:
    return filters[0] if len(filters) == 1 else And(tuple(filters))


def _field(name: str) -> Field:
    if name in COLUMNS:
        return Field(column=cast(Column, name))
    path = tuple(name.removeprefix("metadata.").split("."))
    if not all(path):
        raise _unsupported(f"{_shown(name)} is no field")
    if len(path) > MAX_PATH:
        invalid(f"filter must not name a field more than {MAX_PATH} levels deep")
    return Field(path=path)


def _ordered_operand(field: Field, name: str, operator: str, operand: JSON) -> int | float | str | datetime:
    """The operand as the field compares it; what can never be compared is a mistake of the caller."""
    if field.column == "id":
        number = parse_id(operand)
        if number is None:
            raise _unsupported(f"{operator} on id takes the id of a memory")
        return number
    if field.column in TIMES:
        instant = parse_time(operand)
        if instant is None:
            raise _unsupported(f"{operator} on {name} takes an RFC 3339 time")
        return instant
    is_number = isinstance(operand, int | float) and not isinstance(operand, bool)
    if field.column == "tags" or (field.column in NUMBERS and not is_number):
        raise _unsupported(f"{operator} does not fit {name}")
    if field.column is not None and field.column not in NUMBERS and not isinstance(operand, str):
        raise _unsupported(f"{operator} on {name} takes a string")
    if not is_number and not isinstance(operand, str):
        raise _unsupported(f"{operator} takes a number or a string")
    return cast("int | float | str", operand)
