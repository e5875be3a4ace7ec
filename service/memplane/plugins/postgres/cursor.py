"""Cursors: the sort values of the last row of a page, bound to scope, filter and order.

Opaque to callers, not secret: a forged cursor can at most name another place in the caller's own scope.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from math import isfinite
from typing import Final

from memplane.contracts import JSON, Scope
from memplane.errors import PluginError
from memplane.plugins.postgres.order import SortKey, SortValue
from memplane.schema.canonical import canonical
from memplane.schema.times import format_time, parse_time

VERSION: Final = 1
_MAX_LENGTH: Final = 8192
_MAX_BIGINT: Final = 2**63 - 1


def binding(scope: Scope, filter: Mapping[str, JSON] | None, keys: Sequence[SortKey]) -> str:  # noqa: A002
    """What a cursor belongs to, as a digest. `filter` is normalised JSON, None when there is none."""
    order = [[key.field.name, key.descending] for key in keys]
    document = canonical([VERSION, scope.tenant, scope.user, filter, order])
    return sha256(document.encode()).hexdigest()[:32]


def encode_cursor(bound_to: str, values: Sequence[SortValue]) -> str:
    """The cursor that continues after a row with these sort values."""
    listed = [format_time(value) if isinstance(value, datetime) else value for value in values]
    text = canonical({"v": VERSION, "b": bound_to, "k": listed})
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode_cursor(cursor: str, bound_to: str, keys: Sequence[SortKey]) -> list[SortValue]:
    """The sort values of a cursor. Raises INVALID_CURSOR for anything but a cursor of this scope, filter and order."""
    try:
        if len(cursor) > _MAX_LENGTH:
            raise ValueError
        text = base64.b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        document = json.loads(text)
        if not isinstance(document, dict) or document.get("v") != VERSION or document.get("b") != bound_to:
            raise ValueError
        values = document.get("k")
        if not isinstance(values, list) or len(values) != len(keys):
            raise ValueError
        return [_value(key, value) for key, value in zip(keys, values, strict=True)]
    except (ValueError, OverflowError, binascii.Error, RecursionError):
        raise PluginError("INVALID_CURSOR", "The cursor does not belong to this query") from None


def _value(key: SortKey, value: JSON) -> SortValue:
    """The value if the field can hold it; the type decides, so that no cursor makes a statement fail."""
    kind = key.field.type_name
    if value is None and key.field.nullable:
        return None
    if kind == "bigint" and type(value) is int and 0 <= value <= _MAX_BIGINT:
        return value
    if kind == "float8" and type(value) in (int, float) and isfinite(value):
        return float(value)
    if kind == "timestamptz":
        instant = parse_time(value)
        if instant is not None:
            return instant
    if kind == "text" and isinstance(value, str) and "\0" not in value:
        value.encode()
        return value
    raise ValueError
