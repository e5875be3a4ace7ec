"""JSON as it must be to be stored: one reading only.

Refused besides malformed text: invalid UTF-8, a name twice in one object (readers disagree about which one counts), NaN
and Infinity, numbers that no double holds, integers of more than 4,000 digits, and nesting deeper than 200 levels.
"""

from __future__ import annotations

import json
import math
from typing import Any

MAX_DEPTH = 200
MAX_DIGITS = 4000
"""Below the 4,300 digits at which Python refuses to convert."""


class BadJson(Exception):  # noqa: N818 - names what was sent
    """The text is not acceptable JSON; `reason` may be shown to the caller."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def parse(body: bytes | bytearray) -> Any:  # a JSON value
    """The value of a JSON text. Raises `BadJson`."""
    try:
        value = _DECODER.decode(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise BadJson(f"invalid UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise BadJson(f"{error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise BadJson(f"nested deeper than {MAX_DEPTH} levels") from None
    # Counting brackets is cheap and proves most bodies shallow; only the others are walked.
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH and isinstance(value, (dict, list)):
        _check_depth(value)
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        children = [child for item in level for child in (item.values() if isinstance(item, dict) else item)]
        level = [child for child in children if isinstance(child, (dict, list))]
        if not level:
            return
    raise BadJson(f"nested deeper than {MAX_DEPTH} levels")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise BadJson(f"the name {name[:100]!a} occurs twice in one object")
            seen.add(name)
    return found


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise BadJson(f"an integer has more than {MAX_DIGITS} digits")
    return int(digits)


def _number(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise BadJson("a number is out of range")
    return value


def _constant(name: str) -> float:
    raise BadJson(f"{name} is not JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=_number, parse_constant=_constant
)
_COMPACT = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_ASCII = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":"))


def render(value: Any) -> bytes:
    """Compact UTF-8 JSON. Raises TypeError or ValueError for what is not JSON."""
    try:
        return _COMPACT.encode(value).encode("utf-8")
    except UnicodeEncodeError:
        # A lone surrogate (echoed from a caller's own text) has no UTF-8 form; escaped it has a JSON form.
        return _ASCII.encode(value).encode("ascii")
