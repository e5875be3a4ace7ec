"""What the in-memory store keeps: immutable rows by scope, and from drafts to rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from memplane.contracts import JSON, MemoryItem
from memplane.plugins.postgres.documents import Content, Metadata, prepare_content, prepare_metadata, stored_content
from memplane.plugins.postgres.reserved import Reserved
from memplane.schema.times import format_time

NO_RESERVED = Reserved()


@dataclass(frozen=True, slots=True)
class Row:
    """One live memory. A change makes another row: whoever holds one sees it unchanged."""

    id: int
    key: str | None
    content: Content
    metadata: Metadata | None
    version: int
    created_at: datetime
    updated_at: datetime
    lexemes: frozenset[str]

    @property
    def reserved(self) -> Reserved:
        return NO_RESERVED if self.metadata is None else self.metadata.reserved

    @property
    def size(self) -> int:
        """Characters of content and metadata as JSON, for the page's bound."""
        return len(self.content.text) + (0 if self.metadata is None else len(self.metadata.text))

    def live(self, now: datetime) -> bool:
        return self.reserved.expires_at is None or self.reserved.expires_at > now

    def view(self) -> MemoryItem:
        """The item, for reading only: it shares its metadata with the row."""
        item = MemoryItem(
            id=str(self.id),
            content=self.content.value,
            version=self.version,
            createdAt=format_time(self.created_at),
            updatedAt=format_time(self.updated_at),
        )
        if self.key is not None:
            item["key"] = self.key
        if self.metadata is not None:
            item["metadata"] = self.metadata.value
        return item

    def item(self) -> MemoryItem:
        """A copy that the caller may change as it likes."""
        item = self.view()
        item["content"] = stored_content(self.content.text, self.content.document)
        if self.metadata is not None:
            item["metadata"] = json.loads(self.metadata.text)
        return item


@dataclass(slots=True)
class Space:
    """The memories of one scope. Expired rows may still be in it; `live` is what counts."""

    rows: dict[int, Row] = field(default_factory=dict)
    ids_by_key: dict[str, int] = field(default_factory=dict)

    def live(self, memory_id: int | None, now: datetime) -> Row | None:
        row = None if memory_id is None else self.rows.get(memory_id)
        return row if row is not None and row.live(now) else None

    def put(self, row: Row) -> None:
        self.rows[row.id] = row
        if row.key is not None:
            self.ids_by_key[row.key] = row.id

    def drop(self, memory_id: int) -> None:
        row = self.rows.pop(memory_id)
        if row.key is not None and self.ids_by_key.get(row.key) == memory_id:
            del self.ids_by_key[row.key]


@dataclass(frozen=True, slots=True)
class Parts:
    """The checked fields of a draft or an update; None where the entry leaves a field out."""

    content: Content | None
    metadata: Metadata | None


def prepare(entry: Mapping[str, JSON], where: str) -> Parts:
    """Check an entry's content and metadata. Raises INVALID_INPUT naming the field."""
    content = prepare_content(entry["content"], f"{where}.content") if "content" in entry else None
    metadata = prepare_metadata(entry["metadata"], f"{where}.metadata") if "metadata" in entry else None
    return Parts(content, metadata)
