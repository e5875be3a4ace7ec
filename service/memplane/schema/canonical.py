"""JSON as the truth keeps it: values that survive jsonb unchanged, and one canonical text for each.

jsonb stores numbers as decimals: it gives 1e16 back as an integer and -0.0 as 0.0, and it refuses U+0000 and lone
surrogates. `normalise` therefore maps a value to the one that a re-read gives before anything is hashed or stored, so
that `canonical` of both is the same text (design section 5).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from math import isfinite
from typing import Any, Final, NoReturn

from memplane.errors import PluginError

JSON = Any
"""A JSON value: None, bool, int, float, str, list or dict of them."""

MAX_DEPTH: Final = 100
"""Levels of nesting; far below what Python's and PostgreSQL's parsers take."""

_MAX_INTEGER: Final = 10**4300
"""Python refuses to parse longer integers by default, so a row with one could never be read again."""

_ENCODER: Final = json.JSONEncoder(
    ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False, check_circular=False
)


def canonical(value: JSON) -> str:
    """The canonical text of a normalised value: sorted keys, no spaces, unescaped Unicode."""
    return _ENCODER.encode(value)


def invalid(message: str) -> NoReturn:
    """Refuse the caller's input; the message begins with the field's name."""
    raise PluginError("INVALID_INPUT", message)


def normalise(value: JSON, field: str) -> JSON:
    """The value as a re-read from jsonb gives it; mappings and tuples become dicts and lists, nothing is shared.

    Raises INVALID_INPUT naming `field` for what JSON or jsonb cannot hold.
    """
    return _normalise(value, field, 0)


def _normalise(value: JSON, field: str, depth: int) -> JSON:
    if isinstance(value, str):
        return check_text(value, field)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return _integer(value, field)
    if isinstance(value, float):
        return _float(value, field)
    if depth == MAX_DEPTH:
        invalid(f"{field} is nested more than {MAX_DEPTH} levels deep")
    # The plain types first: an abstract base class answers several times more slowly.
    if isinstance(value, (dict, Mapping)):
        return {_name(name, field): _normalise(item, field, depth + 1) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_normalise(item, field, depth + 1) for item in value]
    invalid(f"{field} must be a JSON value")


def _integer(value: int, field: str) -> int:
    if not -_MAX_INTEGER < value < _MAX_INTEGER:
        invalid(f"{field} holds an integer of more than 4300 digits")
    return int(value)


def _float(value: float, field: str) -> int | float:
    if not isfinite(value):
        invalid(f"{field} holds a number that is not finite")
    if abs(value) >= 1e16:
        # From here on repr() has an exponent, which jsonb writes out as an integer.
        return int(Decimal(repr(float(value))))
    return float(value) + 0.0  # -0.0 becomes 0.0


def _name(name: object, field: str) -> str:
    if not isinstance(name, str):
        invalid(f"{field} holds an object whose names are not strings")
    return check_text(name, field)


def check_text(text: str, field: str) -> str:
    """The string itself, or INVALID_INPUT naming the field: PostgreSQL holds neither U+0000 nor lone surrogates."""
    if "\0" in text:
        invalid(f"{field} must not contain U+0000")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            invalid(f"{field} must not contain lone surrogates")
    return text if type(text) is str else str.__str__(text)
