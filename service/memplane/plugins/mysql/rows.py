"""Rows of `memplane_memory` as memory items, and the parts that every statement shares."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from memplane.contracts import MemoryItem, Scope
from memplane.plugins.mysql.filters import moment
from memplane.plugins.mysql.pool import Row, Session
from memplane.plugins.postgres.documents import stored_content
from memplane.schema.times import format_time

NOW: Final = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00.000000', UTC_TIMESTAMP(6))"
"""The database's clock in microseconds since 1970, whatever its time zone."""

LIVE: Final = f"(m.expires_at IS NULL OR m.expires_at > {NOW})"
"""An expired row is absent everywhere, whether or not the sweep has come by."""

SCOPED: Final = f"m.tenant = %s AND m.user_id = %s AND {LIVE}"
COLUMNS: Final = "m.id, m.`key`, m.metadata, m.version, m.created_at, m.updated_at"
ITEM: Final = f"{COLUMNS}, m.content, m.document"


def scope_arguments(scope: Scope) -> tuple[bytes, bytes]:
    return scope.tenant.encode(), scope.user.encode()


@dataclass(frozen=True, slots=True)
class Stored:
    """One row without its content."""

    memory_id: int
    key: str | None
    metadata: str | None
    version: int
    created_at: int
    updated_at: int

    def item(self, content: str, document: object) -> MemoryItem:
        """The memory item; `content` as it is stored."""
        item = MemoryItem(
            id=str(self.memory_id),
            content=stored_content(content, content if document else None),
            version=self.version,
            createdAt=format_time(moment(self.created_at)),
            updatedAt=format_time(moment(self.updated_at)),
        )
        if self.key is not None:
            item["key"] = self.key
        if self.metadata is not None:
            item["metadata"] = json.loads(self.metadata)
        return item


def stored(row: Row) -> Stored:
    """A row that begins with `COLUMNS`."""
    memory_id, key, metadata, version, created_at, updated_at, *_ = row
    return Stored(memory_id, None if key is None else key.decode(), metadata, version, created_at, updated_at)


def item_of(row: Row) -> MemoryItem:
    """The memory item of a row that begins with `ITEM`."""
    return stored(row).item(row[6], row[7])


async def read_items(session: Session, scope: Scope, ids: Sequence[int], *, live: bool = True) -> dict[int, MemoryItem]:
    """The live memories of the scope among `ids`; with `live` false the expired ones, too."""
    if not ids:
        return {}
    condition = f" AND {LIVE}" if live else ""
    statement = (
        f"SELECT {ITEM} FROM memplane_memory AS m WHERE m.tenant = %s AND m.user_id = %s{condition} AND m.id IN %s"
    )
    rows = await session.rows(statement, [*scope_arguments(scope), tuple(ids)])
    return {row[0]: item_of(row) for row in rows}
