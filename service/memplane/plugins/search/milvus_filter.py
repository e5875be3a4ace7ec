"""The filter language as a Milvus expression, where Milvus means the same by it (design section 8).

Every hit is checked again in PostgreSQL, so an expression may let too much through, but must never keep a match away:
what it keeps away nobody finds again. `to_milvus` gives None for a filter that cannot be said that safely; then
PostgreSQL selects the ids. What was tried (Milvus 2.3.5 and Milvus Lite 3.2.2):

- JSON comparison is by type, integers and doubles compare by value; Lite takes `true` for 1.
- `!=` and `not` hold for absent fields on a server, not in Lite (three-valued): so nothing about metadata is negated
  there, nor anything that lets too much through.
- Integers are exact in literals up to 64 bits, but compared with doubles beyond 2^53 they are not: those are left out.
- `json_contains` tells 1 from 1.0 when it is given 1, not when it is given 1.0.
- A chain of a thousand `or` is refused by a server; lists are fine.
- String literals know `\\n`, `\\t`, `\\"` and `\\\\`; other control characters have no safe spelling on both.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from memplane.projections.milvus_row import microseconds
from memplane.retrieval.filters import And, Compare, Contains, Equal, Exists, Field, Filter, Not, Or
from memplane.schema.canonical import JSON
from memplane.schema.ids import parse_id
from memplane.schema.times import parse_time

MAX_CONDITIONS: Final = 100
MAX_CHARACTERS: Final = 100_000
MAX_LIST: Final = 10_000

ALL: Final = "(memory_id >= 0)"
NONE: Final = "(memory_id < 0)"

_SIGNS: Final = {"$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}
_EXACT_INTEGER: Final = 2**53
_MAX_BIGINT: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class _Part:
    """An expression; `exact` when it lets nothing else through, so that it may be negated. `size` counts conditions."""

    text: str
    exact: bool = True
    size: int = 1


def to_milvus(filter: Filter, *, lite: bool = False) -> str | None:  # noqa: A002 - the wire's name
    """The expression, or None when Milvus cannot say it (see the module)."""
    part = _translate(filter, lite)
    if part is None or part.size > MAX_CONDITIONS or len(part.text) > MAX_CHARACTERS:
        return None
    return part.text


def _translate(filter: Filter, lite: bool) -> _Part | None:  # noqa: A002
    match filter:
        case And(filters):
            return _joined([_translate(part, lite) for part in filters], " and ", ALL)
        case Or(filters):
            return _joined([_translate(part, lite) for part in filters], " or ", NONE)
        case Not(inner):
            part = _translate(inner, lite)
            return _Part(f"(not {part.text})", True, part.size) if part is not None and part.exact else None
        case Equal(field, values):
            return _equal_metadata(field, values, lite) if field.column is None else _equal_column(field.column, values)
        case Compare(field, operator, operand):
            if field.column is None:
                return _compare_metadata(field, _SIGNS[operator], operand, lite)
            return _compare_column(field.column, operator, operand)
        case Exists(field):
            return _exists(field, lite)
        case Contains(field, value):
            return _contains(field, value, lite)


def _joined(parts: list[_Part | None], word: str, empty: str) -> _Part | None:
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    if not known:
        return _Part(empty)
    text = word.join(part.text for part in known)
    return _Part(f"({text})", all(part.exact for part in known), sum(part.size for part in known))


def literal(value: JSON) -> str | None:
    """A string, boolean or number as both servers read it; None for what has no safe spelling."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value) if abs(value) < _EXACT_INTEGER else None
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) and abs(value) < _EXACT_INTEGER else None
    if isinstance(value, str):
        if any((character < " " and character not in "\n\t") for character in value):
            return None
        return json.dumps(value, ensure_ascii=False)
    return None


def _path(field: Field) -> str | None:
    """The metadata value's place, or None for names that have no safe spelling."""
    text = "metadata"
    for name in field.path:
        if any(character in '"\\/~[]' or character < " " for character in name):
            return None
        text += f'["{name}"]'
    return text


def _through_arrays(field: Field) -> bool:
    """A server takes a number in the path for an index into an array, too: then it lets too much through."""
    return any(name.isdigit() for name in field.path)


def _equal_metadata(field: Field, values: tuple[JSON, ...], lite: bool) -> _Part | None:
    path = _path(field)
    literals = [literal(value) for value in values]
    known = [text for text in literals if text is not None]
    if path is None or len(known) < len(literals):
        return None
    exact = not lite and not _through_arrays(field)
    if not known:
        return _Part(NONE)
    if len(known) > 1 and not lite and all(isinstance(value, str) for value in values):
        return _Part(f"({path} in [{', '.join(known)}])", exact)
    text = " or ".join(f"{path} == {value}" for value in known)
    return _Part(f"({text})", exact, len(known))


def _compare_metadata(field: Field, sign: str, operand: int | float | str | datetime, lite: bool) -> _Part | None:
    path = _path(field)
    value = None if isinstance(operand, datetime) else literal(operand)
    if path is None or value is None:
        return None
    return _Part(f"({path} {sign} {value})", not lite and not _through_arrays(field))


def _exists(field: Field, lite: bool) -> _Part | None:
    if field.column in ("id", "version", "createdAt", "updatedAt"):
        return _Part(ALL)
    if field.column == "importance":
        return _Part("(importance >= 0.0)")
    if field.column in ("category", "slot_hint"):
        return _Part(f'({field.column} != "")')
    if field.column == "expires_at":
        return _Part("(expires_at != -1)")
    if field.column is not None or lite:
        # Lite takes a null for an absent field.
        return None
    path = _path(field)
    return None if path is None else _Part(f"(exists {path})", not _through_arrays(field))


def _contains(field: Field, value: JSON, lite: bool) -> _Part | None:
    if field.column == "tags":
        tag = literal(value)
        return _Part(NONE) if not isinstance(value, str) else _json_contains('tags["values"]', tag, exact=not lite)
    if field.column is not None:
        return _Part(NONE)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < _EXACT_INTEGER:
        value = float(value)
    path = _path(field)
    if path is None:
        return None
    return _json_contains(path, literal(value), exact=not lite and not _through_arrays(field))


def _json_contains(path: str, value: str | None, *, exact: bool) -> _Part | None:
    return None if value is None else _Part(f"(json_contains({path}, {value}))", exact)


def _in(name: str, values: list[str]) -> _Part | None:
    if len(values) > MAX_LIST:
        return None
    return _Part(f"({name} in [{', '.join(values)}])") if values else _Part(NONE)


def _equal_column(column: str, values: tuple[JSON, ...]) -> _Part | None:
    if column == "id":
        return _in("memory_id", [str(number) for value in values if (number := parse_id(value)) is not None])
    if column == "version":
        return _in("version", [str(number) for value in values if (number := _version(value)) is not None])
    if column == "importance":
        numbers = [float(value) for value in values if _is_number(value) and 0 <= value <= 1]
        return _in("importance", [repr(number) for number in numbers])
    if column == "expires_at":
        instants = [instant for value in values if (instant := parse_time(value)) is not None]
        return _in("expires_at", [str(microseconds(instant)) for instant in instants])
    if column in ("category", "slot_hint"):
        texts = [literal(value) for value in values if isinstance(value, str) and value]
        return None if None in texts else _in(column, [text for text in texts if text is not None])
    return None


def _compare_column(column: str, operator: str, operand: int | float | str | datetime) -> _Part | None:
    sign = _SIGNS[operator]
    if column == "id" and isinstance(operand, int):
        return _Part(f"(memory_id {sign} {operand})")
    if column == "version" and isinstance(operand, int | float):
        return _compare_version(operator, operand)
    if column == "importance" and isinstance(operand, int | float):
        bounded = (
            min(max(float(operand), -1.0), 2.0) if abs(operand) < _EXACT_INTEGER else (2.0 if operand > 0 else -1.0)
        )
        return _Part(f"(importance {sign} {bounded!r} and importance >= 0.0)")
    if column == "expires_at" and isinstance(operand, datetime):
        return _Part(f"(expires_at {sign} {microseconds(operand)} and expires_at != -1)")
    if column in ("category", "slot_hint") and isinstance(operand, str):
        text = literal(operand)
        return None if text is None else _Part(f'({column} {sign} {text} and {column} != "")')
    return None


def _compare_version(operator: str, operand: int | float) -> _Part:
    """Versions are whole numbers: a bound between two of them, or beyond 64 bits, becomes one that is none of both."""
    if abs(operand) > _MAX_BIGINT:
        return _Part(ALL if (operand < 0) == (operator in ("$gt", "$gte")) else NONE)
    if operator in ("$gt", "$lte"):
        return _Part(f"(version {_SIGNS[operator]} {math.floor(operand)})")
    return _Part(f"(version {_SIGNS[operator]} {min(math.ceil(operand), _MAX_BIGINT)})")


def _version(value: JSON) -> int | None:
    if not _is_number(value) or value != int(value) or not 0 <= value <= _MAX_BIGINT:
        return None
    return int(value)


def _is_number(value: JSON) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
