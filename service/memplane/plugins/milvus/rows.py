"""A whole memory as one row of Milvus, and back.

A VARCHAR of Milvus ends at 65,535 bytes, a content at 1 MiB: so content and metadata are cut at character boundaries
into as many fields as the largest may need, all in one row. A memory is thus written, replaced and deleted in one
piece, and no part can be left over. The fields that filters compare are those of the projection (`milvus_row`), so the
same translation of filters serves both; Milvus' JSON changes numbers, so it is for filters alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from memplane.contracts import JSON, MemoryItem, Scope
from memplane.plugins.postgres.documents import MAX_CONTENT, MAX_METADATA, Content, Metadata, stored_content
from memplane.plugins.postgres.reserved import Reserved
from memplane.projections.milvus_row import TEXT_BYTES, microseconds
from memplane.schema.times import format_time

_PART: Final = TEXT_BYTES - 3
"""Bytes that a field holds at least, wherever the last character ends."""

CONTENT_FIELDS: Final = tuple(f"content{number}" for number in range(-(-MAX_CONTENT // _PART)))
METADATA_FIELDS: Final = tuple(f"metadata{number}" for number in range(-(-MAX_METADATA // _PART)))
LIGHT_FIELDS: Final = (
    "memory_id",
    "key",
    "version",
    "created_at",
    "updated_at",
    "importance",
    "size",
    "metadata_size",
)
"""What is read of every row that a query looks at."""

BODY_FIELDS: Final = (*LIGHT_FIELDS, "document", "described", *METADATA_FIELDS, *CONTENT_FIELDS)

MAX_FILTERED: Final = 60_000
"""Bytes of metadata that Milvus' own filters can look into; what is larger, they always let through."""

_EXACT: Final = 2**53
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Memory:
    """One version of a memory: `metadata` is canonical JSON, None when there is none."""

    memory_id: int
    key: str | None
    content: str
    document: bool
    metadata: str | None
    version: int
    created_at: int
    updated_at: int

    def item(self) -> MemoryItem:
        item = MemoryItem(
            id=str(self.memory_id),
            content=stored_content(self.content, self.content if self.document else None),
            version=self.version,
            createdAt=format_time(_moment(self.created_at)),
            updatedAt=format_time(_moment(self.updated_at)),
        )
        if self.key is not None:
            item["key"] = self.key
        if self.metadata is not None:
            item["metadata"] = json.loads(self.metadata)
        return item


def memory_of(row: Row) -> Memory:
    """The memory of a row with `BODY_FIELDS`."""
    return Memory(
        memory_id=row["memory_id"],
        key=row["key"] or None,
        content="".join(row[name] for name in CONTENT_FIELDS),
        document=row["document"],
        metadata=metadata_of(row) if row["described"] else None,
        version=row["version"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )


def metadata_of(row: Row) -> str:
    """The metadata's text of a row with `METADATA_FIELDS`."""
    return "".join(row[name] for name in METADATA_FIELDS)


def view_of(row: Row) -> MemoryItem:
    """What a filter looks at, of a row with `LIGHT_FIELDS` and `METADATA_FIELDS`; the content is left out."""
    text = metadata_of(row)
    return Memory(
        row["memory_id"],
        row["key"] or None,
        "",
        False,
        text or None,
        row["version"],
        row["created_at"],
        row["updated_at"],
    ).item()


def row_of(scope: Scope, memory: Memory, reserved: Reserved, vector: Sequence[float]) -> dict[str, Any]:
    """All fields of a memory."""
    metadata = memory.metadata or ""
    filtered, whole = _filtered(metadata)
    expires_at = microseconds(reserved.expires_at)
    return {
        "memory_id": memory.memory_id,
        "tenant": scope.tenant,
        "user_id": scope.user,
        "key": memory.key or "",
        "version": memory.version,
        "created_at": memory.created_at,
        "updated_at": memory.updated_at,
        "importance": -1.0 if reserved.importance is None else reserved.importance,
        "category": reserved.category or "",
        "slot_hint": reserved.slot_hint or "",
        # -1 stands for "never", so the one moment of that number is moved: it is long past either way.
        "expires_at": -2 if reserved.expires_at is not None and expires_at == -1 else expires_at,
        "tags": {} if reserved.tags is None else {"values": reserved.tags},
        "metadata": filtered,
        "whole": whole,
        "size": len(memory.content.encode()) + len(metadata.encode()),
        "metadata_size": len(metadata.encode()),
        "document": memory.document,
        "described": memory.metadata is not None,
        **dict(zip(CONTENT_FIELDS, pieces(memory.content, len(CONTENT_FIELDS)), strict=True)),
        **dict(zip(METADATA_FIELDS, pieces(metadata, len(METADATA_FIELDS)), strict=True)),
        "vector": list(vector),
    }


def changed(memory: Memory, content: Content | None, metadata: Metadata | None, now: int) -> Memory:
    """The next version."""
    return Memory(
        memory.memory_id,
        memory.key,
        memory.content if content is None else content.text,
        memory.document if content is None else content.document is not None,
        memory.metadata if metadata is None else metadata.text,
        memory.version + 1,
        memory.created_at,
        max(now, memory.updated_at),
    )


def pieces(text: str, count: int) -> list[str]:
    """`text` cut into `count` parts of at most `TEXT_BYTES` bytes each; the last ones are empty."""
    encoded = text.encode()
    parts: list[str] = []
    start = 0
    for _ in range(count):
        end = min(start + TEXT_BYTES, len(encoded))
        while end < len(encoded) and encoded[end] & 0xC0 == 0x80:
            end -= 1
        parts.append(encoded[start:end].decode())
        start = end
    assert start == len(encoded)
    return parts


def _filtered(text: str) -> tuple[JSON, bool]:
    """The metadata as Milvus' filters see it, and whether they see all of it as it is."""
    if not text:
        return {}, True
    value = json.loads(text)
    whole = len(text.encode()) <= MAX_FILTERED and _exact(value)
    return (value, True) if whole else ({}, False)


def _exact(value: JSON) -> bool:
    """Whether Milvus keeps every number: integers and doubles compare exactly up to 2^53 only."""
    if isinstance(value, dict):
        return all(map(_exact, value.values()))
    if isinstance(value, list):
        return all(map(_exact, value))
    return not isinstance(value, int | float) or abs(value) < _EXACT


def _moment(value: int) -> datetime:
    return _EPOCH + timedelta(microseconds=value)
