"""One spelling for every JSON value, so that equal values have equal digests in any language. Source: K-01, X-01.

Sorted keys (by UTF-16 code units), no spaces, UTF-8, numbers as ECMAScript prints them (`1.0` is `1`, `1e-07` is
`1e-7`).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any


class NotJson(ValueError):  # noqa: N818 - says what the value is
    """The value is no finite, acyclic JSON value. The message names the place."""


def canonical_json(value: Any) -> str:
    """The one spelling of a JSON value. Raises `NotJson` on anything else: functions, cycles, NaN, other keys."""
    parts: list[str] = []
    _write(value, "$", parts, set())
    return "".join(parts)


def digest(value: Any) -> str:
    """SHA-256 (lower-case hex) of the canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode("utf-8")).hexdigest()


def snapshot(value: Any) -> Any:
    """A deep, independent copy of a JSON value made of `dict` and `list`. Raises `NotJson`."""
    return _copy(value, "$", set())


def freeze(value: Any) -> Any:
    """The JSON value with read-only mappings and tuples all the way down."""
    if isinstance(value, Mapping):
        return MappingProxyType({key: freeze(item) for key, item in value.items()})
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(freeze(item) for item in value)
    return value


def _copy(value: Any, path: str, seen: set[int]) -> Any:
    if value is None or isinstance(value, bool | str | int):
        return value
    if isinstance(value, float):
        _finite(value, path)
        return value
    with _Visit(value, path, seen):
        if isinstance(value, Mapping):
            return {_key(key, path): _copy(item, f"{path}.{key}", seen) for key, item in value.items()}
        if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
            return [_copy(item, f"{path}[{index}]", seen) for index, item in enumerate(value)]
    raise NotJson(f"{path} is not a JSON value")


def _write(value: Any, path: str, parts: list[str], seen: set[int]) -> None:
    if value is None or isinstance(value, bool):
        parts.append({None: "null", True: "true", False: "false"}[value])
    elif isinstance(value, str):
        parts.append(_string(value))
    elif isinstance(value, int):
        parts.append(str(int(value)))
    elif isinstance(value, float):
        parts.append(_number(value, path))
    elif isinstance(value, Mapping):
        with _Visit(value, path, seen):
            _write_members(value, path, parts, seen)
    elif isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        with _Visit(value, path, seen):
            for index, item in enumerate(value):
                parts.append("," if index else "[")
                _write(item, f"{path}[{index}]", parts, seen)
            parts.append("]" if value else "[]")
    else:
        raise NotJson(f"{path} is not a JSON value")


def _write_members(value: Mapping[Any, Any], path: str, parts: list[str], seen: set[int]) -> None:
    keys = sorted((_key(key, path) for key in value), key=lambda key: key.encode("utf-16-be", "surrogatepass"))
    for index, key in enumerate(keys):
        parts.append("," if index else "{")
        parts.append(_string(key))
        parts.append(":")
        _write(value[key], f"{path}.{key}", parts, seen)
    parts.append("}" if keys else "{}")


class _Visit:
    """Marks a container while its members are visited, so that a cycle is seen."""

    def __init__(self, value: object, path: str, seen: set[int]) -> None:
        if id(value) in seen:
            raise NotJson(f"{path} contains itself")
        self._id, self._seen = id(value), seen

    def __enter__(self) -> None:
        self._seen.add(self._id)

    def __exit__(self, *_: object) -> None:
        self._seen.discard(self._id)


def _key(key: object, path: str) -> str:
    if not isinstance(key, str):
        raise NotJson(f"{path} has a key that is not a string")
    return key


def _string(value: str) -> str:
    text = json.dumps(value, ensure_ascii=False)
    if any("\ud800" <= character <= "\udfff" for character in text):
        text = "".join(f"\\u{ord(c):04x}" if "\ud800" <= c <= "\udfff" else c for c in text)
    return text


def _finite(value: float, path: str) -> None:
    if not math.isfinite(value):
        raise NotJson(f"{path} is not a finite number")


def _number(value: float, path: str) -> str:
    """The shortest digits that read back as the same double, laid out by ECMAScript's Number::toString."""
    _finite(value, path)
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    mantissa, _, exponent_text = f"{abs(value)!r}".partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent_text or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    return sign + _layout(digits, point)


def _layout(digits: str, point: int) -> str:
    """`digits` with the decimal point after `point` of them (it may lie outside), in ECMAScript's layout."""
    if len(digits) <= point <= 21:
        return digits.ljust(point, "0")
    if 0 < point <= 21:
        return f"{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"0.{'0' * -point}{digits}"
    exponent = point - 1
    mantissa = digits if len(digits) == 1 else f"{digits[0]}.{digits[1:]}"
    return f"{mantissa}e{'+' if exponent > 0 else '-'}{abs(exponent)}"
