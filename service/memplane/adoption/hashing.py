"""What SQL cannot make of an old row: its content hash and its lexemes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from memplane.errors import SchemaError
from memplane.plugins.postgres.hashes import Hashed, content_hash
from memplane.schema.canonical import canonical

HASHED_COLUMNS: Final = (
    "tenant", "user_id", "key", "metadata", "importance", "category", "tags", "slot_hint", "expires_at", "deleted_at",
)  # fmt: skip
"""Columns that the hash covers beside id, version, text_hash and whether there is a document."""

Row = Mapping[str, Any]


def hash_of(row: Row, text_hash: bytes, *, is_document: bool = False) -> str:
    """The content hash of a row with `HASHED_COLUMNS`, id and version. Raises `SchemaError` naming the memory."""
    return content_hash(
        Hashed(
            memory_id=row["id"],
            tenant=row["tenant"],
            user_id=row["user_id"],
            key=row["key"],
            text_hash=text_hash,
            is_document=is_document,
            metadata=_metadata(row),
            importance=row["importance"],
            category=row["category"],
            tags=row["tags"],
            slot_hint=row["slot_hint"],
            expires_at=_time(row["expires_at"]),
            version=row["version"],
            deleted_at=_time(row["deleted_at"]),
        )
    )


def _metadata(row: Row) -> str | None:
    if row["metadata"] is None:
        return None
    try:
        return canonical(json.loads(row["metadata"]))
    except (ValueError, RecursionError):
        # Numbers of thousands of digits, or thousands of levels.
        raise SchemaError(
            f"adoption.columns.metadata: that of memory {row['id']} holds more than memplane can read; change it there"
        ) from None


def _time(value: object) -> datetime | None:
    return value if isinstance(value, datetime) else None
