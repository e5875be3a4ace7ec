"""A memory as a row of a Milvus collection: its fields, its digest, and the schema that holds it (design section 5).

Milvus before 2.5 holds no nulls, so absent values are stored as values that read naturally in its filters:

| field                 | type    | absent in the truth | else                  |
|-----------------------|---------|---------------------|-----------------------|
| `category, slot_hint` | VARCHAR | `""`                | the text              |
| `importance`          | DOUBLE  | `-1.0`              | 0 to 1                |
| `expires_at`          | INT64   | `-1`                | µs since 1970         |
| `tags`                | JSON    | `{}`                | `{"values": ["a", …]}`, as its JSON must be an object |
| `metadata`            | JSON    | `{}`                | the object            |

Integers of `metadata` beyond 64 bits become doubles (text, if even a double is too small), as Milvus' JSON has none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from memplane.contracts import JSON
from memplane.outbox.events import TaskFailed, Truth
from memplane.projections.hash import hash_and_size, projection_hash

if TYPE_CHECKING:
    from memplane.projections.generation import Generation

SCALARS: tuple[str, ...] = (
    "memory_id",
    "backend",
    "tenant",
    "user_id",
    "version",
    "content_hash",
    "importance",
    "category",
    "tags",
    "slot_hint",
    "expires_at",
    "metadata",
)
"""The fields that `projection_hash` covers, in its order. The row also holds `projection_hash` and `vector`."""

TEXT_BYTES = 65_535
"""The longest VARCHAR of Milvus, in bytes of UTF-8."""

JSON_BYTES = 65_536
"""The longest JSON value of Milvus, in bytes."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LOW, _HIGH = -(2**63), 2**64 - 1


def microseconds(moment: datetime | None) -> int:
    """Microseconds since 1970, exact; -1 for None."""
    return -1 if moment is None else (moment - _EPOCH) // _MICROSECOND


def scalars(truth: Truth, backend: str) -> dict[str, JSON]:
    """The fields of a live memory without hash and vector. Raises `TaskFailed` for a text that no VARCHAR holds."""
    row: dict[str, JSON] = {
        "memory_id": truth.memory_id,
        "backend": backend,
        "tenant": truth.tenant,
        "user_id": truth.user_id,
        "version": truth.version,
        "content_hash": truth.content_hash,
        "importance": -1.0 if truth.importance is None else float(truth.importance),
        "category": truth.category or "",
        "tags": {} if truth.tags is None else {"values": list(truth.tags)},
        "slot_hint": truth.slot_hint or "",
        "expires_at": microseconds(truth.expires_at),
        "metadata": bounded_numbers(truth.metadata or {}),
    }
    for name in ("tenant", "user_id", "category", "slot_hint"):
        if len(row[name]) * 4 > TEXT_BYTES and len(row[name].encode()) > TEXT_BYTES:
            raise TaskFailed(truth.memory_id, f"{name} exceeds the {TEXT_BYTES} bytes that Milvus holds")
    return row


def digest(row: Mapping[str, Any], space: str) -> str:
    """`projection_hash` of a row, built from the truth or read from Milvus."""
    return projection_hash(space, [row[name] for name in SCALARS])


def expected(truth: Truth, generation: Generation) -> tuple[dict[str, JSON], int]:
    """The row of a live memory but its vector, and about how many bytes it takes. Raises `TaskFailed`."""
    row = scalars(truth, generation.backend)
    row["projection_hash"], size = hash_and_size(generation.space, [row[name] for name in SCALARS])
    if size > JSON_BYTES and json_size(row["metadata"]) > JSON_BYTES:
        raise TaskFailed(truth.memory_id, f"metadata exceeds the {JSON_BYTES} bytes that Milvus holds")
    return row, size


def json_size(value: JSON) -> int:
    """Bytes of a value as compact JSON."""
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())


def bounded_numbers(value: JSON) -> JSON:
    """`value` with every integer beyond 64 bits as a double, or as text when a double cannot hold it either.

    Objects and arrays are copied.
    """
    # Texts first, without a call where it can be: this runs for every value of every memory.
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return {key: item if type(item) is str else bounded_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [item if type(item) is str else bounded_numbers(item) for item in value]
    if isinstance(value, int) and not _LOW <= value <= _HIGH:
        try:
            return float(value)
        except OverflowError:
            return str(value)
    return value
