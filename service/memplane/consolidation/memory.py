"""What a plan is made from: memories of one scope as one snapshot of the database showed them. No I/O."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from memplane.contracts import JSON, Scope

MAX_REFERRERS: Final = 200
"""A memory that more memories point to is never merged away: redirecting them all would be a long transaction."""

Relation = tuple[str, int]
"""Type and target."""


@dataclass(frozen=True, slots=True)
class Memory:
    """One live or expired memory of the snapshot.

    `metadata` is the document as it was written, None without one; `relations` are its live outgoing edges, of which
    the metadata may name more (edges to memories that are gone).
    """

    id: int
    version: int
    text_hash: bytes
    created_at: datetime
    updated_at: datetime
    key: str | None = None
    is_document: bool = False
    metadata: Mapping[str, JSON] | None = None
    importance: float | None = None
    category: str | None = None
    slot_hint: str | None = None
    expires_at: datetime | None = None
    relations: frozenset[Relation] = frozenset()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A consistent picture of memories of one scope, taken at `taken_at` by the database's clock.

    `memories` are those that may be changed. `referrers`: memories outside of them that point to some of them.
    `incoming`: the sources of live edges to a memory; None when there are more than `MAX_REFERRERS`. `vectors`:
    stored embeddings of one model and revision. `contents` are there for a policy that asks for them.
    """

    scope: Scope
    taken_at: datetime
    memories: Mapping[int, Memory]
    vectors: Mapping[int, array[float]] = field(default_factory=dict)
    incoming: Mapping[int, frozenset[int] | None] = field(default_factory=dict)
    referrers: Mapping[int, Memory] = field(default_factory=dict)
    contents: Mapping[int, JSON] = field(default_factory=dict)

    def memory(self, memory_id: int) -> Memory | None:
        """A memory of the snapshot, candidate or referrer."""
        return self.memories.get(memory_id) or self.referrers.get(memory_id)

    def expired(self, memory: Memory) -> bool:
        return memory.expires_at is not None and memory.expires_at <= self.taken_at
