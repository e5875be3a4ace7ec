"""What "object", "array", "integer" and "nonempty string" mean in node documents: JSON's meaning, not Python's.

A boolean is no integer, 5.0 is the integer 5, a string is no array, and only a nonempty string has length (one blank is
enough).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

MAX_SAFE_INTEGER = 2**53 - 1
"""Largest integer that every JSON reader keeps exactly."""


def is_object(value: object) -> TypeGuard[Mapping[str, Any]]:
    return type(value) is dict or isinstance(value, Mapping)


def is_array(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, list | tuple)


def is_nonempty_string(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and value != ""


def is_number(value: object) -> TypeGuard[int | float]:
    """A finite number. Every Python integer is one; a boolean is not."""
    if isinstance(value, bool):
        return False
    return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))


def integer(value: object, low: int, high: int) -> int | None:
    """The integer of low..high that `value` stands for, or None."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        return None
    return value
