"""The fields of a memory that an old table may hold, and how their values get from one column to the other.

`forward` reads the old column, `back` tells it what memplane wrote. Both are SQL expressions in which `{r}` stands for
the row: an alias, NEW or OLD. No value of the old application may make them fail, or its own statement would.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from memplane.adoption.table import Column
from memplane.settings import AdoptionSettings

Kind = Literal["text", "json", "number", "names", "time", "flag"]

TEXTS: Final = frozenset({"text", "character varying", "character", "name"})
INTEGERS: Final[Mapping[str, int]] = {"smallint": 4, "integer": 9, "bigint": 18}
"""Digits that always fit."""
NUMBERS: Final = frozenset({"real", "double precision", "numeric", *INTEGERS})
TIMES: Final = frozenset({"timestamp with time zone", "timestamp without time zone", "date"})
JSONS: Final = frozenset({"json", "jsonb"})
ARRAYS: Final = frozenset({"text[]", "character varying[]"})

ACCEPTED: Final[Mapping[Kind, frozenset[str]]] = {
    "text": TEXTS | frozenset(INTEGERS) | {"uuid"},
    "json": JSONS,
    "number": NUMBERS,
    "names": ARRAYS | JSONS | TEXTS,
    "time": TIMES,
    "flag": frozenset({"boolean", *INTEGERS}),
}
"""Types of an old column that can be read, by the field's kind."""

IN_PLACE: Final[Mapping[Kind, frozenset[str]]] = {
    "text": frozenset({"text", "character varying"}),
    "json": frozenset({"jsonb"}),
    "number": frozenset({"double precision"}),
    "names": frozenset({"text[]"}),
    "time": frozenset({"timestamp with time zone"}),
    "flag": frozenset(),
}
"""Types of an old column that memplane can use itself, when it has the field's name."""

CHANGED: Final = frozenset({"created_at", "updated_at"})
"""Times that every row has, and that are no part of what a projection holds."""

MAX_NAME: Final = 256
MAX_KEY: Final = 512


@dataclass(frozen=True, slots=True)
class Field:
    """`column` is memplane's; that of `deleted` is `deleted_at`."""

    name: str
    kind: Kind
    required: bool = False

    @property
    def column(self) -> str:
        return "deleted_at" if self.name == "deleted" else self.name


FIELDS: Final = (
    Field("tenant", "text", required=True),
    Field("user_id", "text", required=True),
    Field("key", "text"),
    Field("content", "text", required=True),
    Field("metadata", "json"),
    Field("importance", "number"),
    Field("category", "text"),
    Field("tags", "names"),
    Field("slot_hint", "text"),
    Field("expires_at", "time"),
    Field("created_at", "time"),
    Field("updated_at", "time"),
    Field("deleted_at", "time"),
    Field("deleted", "flag"),
)


@dataclass(frozen=True, slots=True)
class Source:
    """Where a field's values come from. In place: it is memplane's own column. `moves`: `forward` may change it."""

    field: Field
    column: Column
    in_place: bool
    forward: str
    back: str
    moves: bool = True

    @property
    def quoted(self) -> str:
        return quote(self.column.name)

    @property
    def comparable(self) -> str:
        """The old value in a form that has an equality."""
        return "{r}." + self.quoted + ("::text" if self.column.type == "json" else "")


def quote(name: str) -> str:
    """An identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A string of SQL."""
    return "'" + text.replace("'", "''") + "'"


def source_of(field: Field, column: Column, settings: AdoptionSettings) -> Source:
    """How `field` is read from `column`, whose type is one of `ACCEPTED`."""
    old, new = "{r}." + quote(column.name), "{r}." + quote(field.column)
    if field.name == column.name and column.type in IN_PLACE[field.kind]:
        stands_in = "''" if field.required else "clock_timestamp()" if field.name in CHANGED else None
        forward = old if stands_in is None else f"coalesce({old}, {stands_in})"
        return Source(field, column, True, forward, old, moves=stands_in is not None)
    forward, back = _EXPRESSIONS[field.kind](field, column, old, new, settings)
    return Source(field, column, False, forward, back)


def _text(field: Field, column: Column, old: str, new: str, _: AdoptionSettings) -> tuple[str, str]:
    text = f"{old}::text"
    if field.required:
        forward = f"coalesce({text}, '')"
    elif field.name == "key":
        forward = f"CASE WHEN length({text}) <= {MAX_KEY} THEN nullif({text}, '') END"
    else:
        forward = f"nullif(left({text}, {MAX_NAME}), '')"
    return forward, _text_back(column, new)


def _text_back(column: Column, new: str) -> str:
    if column.type in INTEGERS:
        digits = INTEGERS[column.type]
        return f"CASE WHEN {new} ~ '^-?[0-9]{{1,{digits}}}$' THEN {new}::{column.type} END"
    if column.type == "uuid":
        groups = "-".join(f"[0-9a-fA-F]{{{count}}}" for count in (8, 4, 4, 4, 12))
        return f"CASE WHEN {new} ~ '^{groups}$' THEN {new}::uuid END"
    return f"{new}::{column.full_type}"


def _json(_: Field, column: Column, old: str, new: str, __: AdoptionSettings) -> tuple[str, str]:
    value = f"{old}::jsonb"
    return f"CASE WHEN jsonb_typeof({value}) = 'object' THEN {value} END", f"{new}::{column.type}"


def _number(_: Field, column: Column, old: str, new: str, settings: AdoptionSettings) -> tuple[str, str]:
    scale = repr(settings.importance_scale)
    value = f"({old}::double precision / {scale}::double precision)"
    # NaN is greater than every number here, so it becomes NULL with them.
    forward = f"CASE WHEN {value} <> 'NaN' THEN least(1, greatest(0, {value})) END"
    return forward, f"({new} * {scale}::double precision)::{column.full_type}"


def _names(_: Field, column: Column, old: str, new: str, settings: AdoptionSettings) -> tuple[str, str]:
    cut = f"left(btrim(e), {MAX_NAME})"
    tags = f"ARRAY(SELECT {cut} FROM {{parts}} AS e WHERE btrim(e) <> '' LIMIT 256)"
    if column.type in ARRAYS:
        parts, back = f"unnest({old}::text[])", f"{new}::{column.type}"
    elif column.type in JSONS:
        # The elements of something that is no array would be an error.
        value = f"{old}::jsonb"
        array = f"CASE WHEN jsonb_typeof({value}) = 'array' THEN {value} ELSE '[]' END"
        parts, back = f"jsonb_array_elements_text({array})", f"to_jsonb({new})::{column.type}"
    else:
        separator = literal(settings.tags_separator)
        parts = f"unnest(string_to_array({old}::text, {separator}))"
        back = f"array_to_string({new}, {separator})::{column.full_type}"
    return f"CASE WHEN {old} IS NOT NULL THEN {tags.replace('{parts}', parts)} END", back


def _time(field: Field, column: Column, old: str, new: str, settings: AdoptionSettings) -> tuple[str, str]:
    zone = literal(settings.time_zone)
    if column.type == "timestamp with time zone":
        forward, back = old, new
    else:
        forward = f"({old}::timestamp AT TIME ZONE {zone})"
        back = f"({new} AT TIME ZONE {zone})::{column.full_type}"
    forward = f"CASE WHEN isfinite({old}) THEN {forward} END"
    if field.name in CHANGED:
        forward = f"coalesce({forward}, {{r}}.{field.name})"
    return forward, back


def _flag(_: Field, column: Column, old: str, new: str, __: AdoptionSettings) -> tuple[str, str]:
    if column.type == "boolean":
        return f"CASE WHEN {old} THEN coalesce({new}, clock_timestamp()) END", f"({new} IS NOT NULL)"
    flag = f"CASE WHEN {old} <> 0 THEN coalesce({new}, clock_timestamp()) END"
    return flag, f"({new} IS NOT NULL)::int::{column.type}"


_EXPRESSIONS: Final = {
    "text": _text,
    "json": _json,
    "number": _number,
    "names": _names,
    "time": _time,
    "flag": _flag,
}
