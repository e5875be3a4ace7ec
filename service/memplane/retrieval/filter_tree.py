"""A parsed filter: what `filters.parse_filter` returns and every plugin translates."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, TypeAlias

from memplane.schema.canonical import JSON

Column = Literal[
    "id", "key", "createdAt", "updatedAt", "version", "importance", "category", "tags", "slot_hint", "expires_at"
]
Order = Literal["$gt", "$gte", "$lt", "$lte"]

COLUMNS: Final[frozenset[str]] = frozenset(
    ("id", "key", "createdAt", "updatedAt", "version", "importance", "category", "tags", "slot_hint", "expires_at")
)
TIMES: Final[frozenset[str]] = frozenset(("createdAt", "updatedAt", "expires_at"))
NUMBERS: Final[frozenset[str]] = frozenset(("version", "importance"))
ORDERED: Final = ("$gt", "$gte", "$lt", "$lte")
OPERATORS: Final[tuple[str, ...]] = ("$eq", "$ne", *ORDERED, "$in", "$exists", "$contains", "$and", "$or", "$not")
"""What a store that speaks the language lists in `capabilities.filters`."""


@dataclass(frozen=True, slots=True)
class Field:
    """`column` for a column; otherwise `path`, the names from the metadata object down."""

    column: Column | None = None
    path: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class And:
    filters: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class Or:
    filters: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class Not:
    filter: Filter


@dataclass(frozen=True, slots=True)
class Equal:
    """The field equals one of `values`."""

    field: Field
    values: tuple[JSON, ...]


@dataclass(frozen=True, slots=True)
class Compare:
    """`operand` fits the field: an id or version number, a datetime for a time, else a number or a string."""

    field: Field
    operator: Order
    operand: int | float | str | datetime


@dataclass(frozen=True, slots=True)
class Exists:
    field: Field


@dataclass(frozen=True, slots=True)
class Contains:
    field: Field
    value: JSON


Filter: TypeAlias = And | Or | Not | Equal | Compare | Exists | Contains
