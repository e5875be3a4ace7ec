"""Rows of Milvus, and what they should be, as tuples that compare at the speed of C.

A full comparison looks at every field of a million rows. pymilvus gives scalars as a mapping per row, and decodes
JSON and vectors only when they are asked for; decoding 64 floats costs more than everything else. So their encoded
form is taken from the answer as it came: JSON as the bytes that were stored, vectors as one block of float32 values.
"""

from __future__ import annotations

import json
import re
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from operator import itemgetter, lt
from typing import Any

from memplane.contracts import JSON
from memplane.projections.generation import Generation
from memplane.projections.hash import projection_hash
from memplane.projections.milvus_row import SCALARS, bounded_numbers, microseconds
from memplane.reconcile.truth import Row

FIELDS: tuple[str, ...] = (*SCALARS, "projection_hash")
"""The fields of a tuple; behind them stands the vector: its SHA-256, or its bytes, or None when it was not read."""

_JSON = ("tags", "metadata")
_BIG = re.compile(r"\d{19}")
"""Only a number of so many digits may exceed 64 bits."""

_decode = json.JSONDecoder().raw_decode
"""Without the checks of `json.loads`: PostgreSQL returns nothing but the document."""

_compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def held_tuples(answer: Sequence[Mapping[str, Any]], dimensions: int | None, *, digests: bool) -> list[tuple[Any, ...]]:
    """The rows of an answer in id order. `dimensions`: of the vectors, None when they were not asked for."""
    if not answer:
        return []
    encoded = _encoded(answer)
    plain = list(list.__iter__(answer)) if isinstance(answer, list) else list(answer)
    columns: list[Sequence[Any]] = []
    for name in FIELDS:
        if name not in _JSON:
            columns.append([row[name] for row in plain])
        elif encoded is not None:
            columns.append(list(encoded[name].scalars.json_data.data))
        else:
            columns.append([_compact(row[name]).encode() for row in answer])
    columns.append(_vectors(answer, encoded, dimensions, digests=digests))
    rows = list(zip(*columns, strict=True))
    ids = columns[0]
    if not all(map(lt, ids, ids[1:])):
        rows.sort(key=itemgetter(0))
    return rows


def _encoded(answer: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The fields that pymilvus has not decoded yet; None when this release of it does not say."""
    waiting = getattr(answer, "_lazy_field_data", None)
    if waiting is None:
        return None
    fields = {field.field_name: field for field in waiting}
    complete = all(name in fields and len(fields[name].scalars.json_data.data) == len(answer) for name in _JSON)
    return fields if complete else None


def _vectors(
    answer: Sequence[Mapping[str, Any]], encoded: dict[str, Any] | None, dimensions: int | None, *, digests: bool
) -> Sequence[bytes | None]:
    if dimensions is None:
        return [None] * len(answer)
    width = 4 * dimensions
    if encoded is not None and "vector" in encoded:
        # One packed field: its tag, its length, then nothing but little-endian float32 values.
        block = memoryview(encoded["vector"].vectors.float_vector.SerializeToString())[-width * len(answer) :]
    else:
        block = memoryview(b"".join(_little_endian(row["vector"]) for row in answer))
    parts: Iterator[memoryview] = (block[start : start + width] for start in range(0, len(block), width))
    return [sha256(part).digest() for part in parts] if digests else [bytes(part) for part in parts]


def _little_endian(values: Sequence[float]) -> bytes:
    packed = array("f", values)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def expected_tuples(rows: Sequence[Row], generation: Generation) -> list[tuple[Any, ...]]:
    """What Milvus should return for these live memories. A memory that it cannot hold gets a tuple like any other."""
    space, backend = generation.space, generation.backend
    found: list[tuple[Any, ...]] = []
    for row in rows:
        tags, tags_json = _tags(None if row["tags"] is None else tuple(row["tags"]))
        metadata = _metadata(row["metadata"])
        importance, expires_at = row["importance"], row["expires_at"]
        fields: list[JSON] = [
            row["id"],
            backend,
            row["tenant"],
            row["user_id"],
            row["version"],
            row["content_hash"],
            -1.0 if importance is None else float(importance),
            row["category"] or "",
            tags,
            row["slot_hint"] or "",
            -1 if expires_at is None else microseconds(expires_at),
            metadata,
        ]
        digest = projection_hash(space, fields)
        fields[8], fields[11] = tags_json, _compact(metadata).encode()
        found.append((*fields, digest, row["vector"]))
    return found


@lru_cache(maxsize=4096)
def _tags(tags: tuple[str, ...] | None) -> tuple[dict[str, JSON], bytes]:
    value: dict[str, JSON] = {} if tags is None else {"values": list(tags)}
    return value, _compact(value).encode()


def _metadata(stored: Any) -> JSON:
    if stored is None:
        return {}
    if isinstance(stored, str):
        value, _ = _decode(stored)
        return value if _BIG.search(stored) is None else bounded_numbers(value)
    return bounded_numbers(dict(stored))
