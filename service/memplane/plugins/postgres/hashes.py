"""The hashes that tell whether a projection holds what PostgreSQL holds (seed `002` section 5.1).

Both are SHA-256 over canonical JSON of stored values, so a row that is read back hashes the same. The content goes in
by its own SHA-256, which is a column (`text_hash`): deleting ten thousand large memories needs no content read.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from json.encoder import encode_basestring
from typing import Final

from memplane.schema.canonical import canonical
from memplane.schema.times import format_time

_NULL: Final = "null"


@dataclass(frozen=True, slots=True)
class Hashed:
    """What `content_hash` covers. `metadata` is canonical JSON, or None when the memory has none."""

    memory_id: int
    tenant: str
    user_id: str
    key: str | None
    text_hash: bytes
    is_document: bool
    metadata: str | None
    importance: float | None
    category: str | None
    tags: list[str] | None
    slot_hint: str | None
    expires_at: datetime | None
    version: int
    deleted_at: datetime | None = None


def hashed_text(row: Hashed) -> str:
    """Canonical JSON of all that is hashed; joined by hand because the metadata is canonical text already."""
    return (
        f'{{"category":{_string(row.category)}'
        f',"content_sha256":"{row.text_hash.hex()}"'
        f',"deleted_at":{_time(row.deleted_at)}'
        f',"document":{"true" if row.is_document else "false"}'
        f',"expires_at":{_time(row.expires_at)}'
        f',"importance":{_NULL if row.importance is None else repr(row.importance)}'
        f',"key":{_string(row.key)}'
        f',"memory_id":{row.memory_id}'
        f',"metadata":{_NULL if row.metadata is None else row.metadata}'
        f',"slot_hint":{_string(row.slot_hint)}'
        f',"tags":{_NULL if row.tags is None else canonical(row.tags)}'
        f',"tenant":{_string(row.tenant)}'
        f',"user_id":{_string(row.user_id)}'
        f',"version":{row.version}}}'
    )


def content_hash(row: Hashed) -> str:
    """The hash of one version of a memory, 64 hex digits."""
    return sha256(hashed_text(row).encode()).hexdigest()


def relation_hash(
    *,
    source_id: int,
    kind: str,
    target_id: int,
    tenant: str,
    user_id: str,
    version: int,
    deleted: bool,
) -> str:
    """The hash of one version of an edge, 64 hex digits."""
    document = {
        "deleted": deleted,
        "source_id": source_id,
        "target_id": target_id,
        "tenant": tenant,
        "type": kind,
        "user_id": user_id,
        "version": version,
    }
    return sha256(canonical(document).encode()).hexdigest()


def _string(value: str | None) -> str:
    return _NULL if value is None else str(encode_basestring(value))


def _time(value: datetime | None) -> str:
    return _NULL if value is None else f'"{format_time(value)}"'
