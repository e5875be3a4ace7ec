"""Bodies of memories in this process's memory (seed `002` section 11; design section 8).

The cache knows bodies, never truths: whether a memory exists, is live, matches and in which version is always asked of
PostgreSQL. Only GET with `consistency: cached` (`cache.cached_store`) believes it, for at most the TTL.

Invariants: one entry per memory, served to its tenant and user alone, never replaced by an older version. An entry
without a body is a floor: "whatever is older than this version is stale", left by a delete or an invalidation, so that
a slow reader cannot put back what it read before. Entries older than the TTL are never served. Everything runs on the
event loop's thread, without awaiting.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TypeVar, cast

from memplane.contracts import JSON, MemoryItem, Scope
from memplane.schema.committed import Committed

ENTRY_BYTES = 200
"""What an entry costs beside its body, about."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Entry:
    version: int
    scope: Scope | None
    item: MemoryItem | None
    expires_at: datetime | None
    stale_at: float
    size: int


class LtmCache:
    """Least recently used bodies within `max_bytes`; 0 turns it off. `clock` is monotonic, `now` is wall time."""

    def __init__(
        self,
        *,
        max_bytes: int,
        ttl_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.max_bytes = max_bytes
        self.ttl_seconds = ttl_seconds
        self.reloads: Counter[str] = Counter()
        """Bodies that were read from PostgreSQL, by reason: `miss` (not held), `ttl` (held too long), `invalidated`
        (known to be stale), `version` (stale, and nobody had said so)."""
        self.version_lag_seconds = 0.0
        """How long the stalest body that the last poll found had been out of date; set by `cache.listener`."""
        self._clock = clock
        self._now = now
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self._bytes = 0

    @property
    def enabled(self) -> bool:
        return self.max_bytes > 0

    @property
    def size(self) -> int:
        """Bytes that the entries take, about."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._entries)

    def version(self, scope: Scope, memory_id: int) -> int | None:
        """The version whose body can be served to this scope; None when there is none."""
        entry = self._served(scope, memory_id)
        return entry.version if entry is not None else None

    def body(self, scope: Scope, memory_id: int, version: int) -> MemoryItem | None:
        """A copy of the body of exactly this version, or None."""
        entry = self._served(scope, memory_id)
        if entry is None or entry.version != version:
            return None
        self._entries.move_to_end(memory_id)
        return _copied(entry.item)

    def latest(self, scope: Scope, memory_id: int) -> MemoryItem | None:
        """A copy of the body that is held, if it has not expired: at most the TTL behind the truth."""
        entry = self._served(scope, memory_id)
        if entry is None or (entry.expires_at is not None and entry.expires_at <= self._now()):
            return None
        self._entries.move_to_end(memory_id)
        return _copied(entry.item)

    def put(self, scope: Scope, item: MemoryItem, *, expires_at: datetime | None) -> None:
        """Keep a body that was read from PostgreSQL, and count why it had to be read.

        A version older than the one that is known is left out: a slow reader must not undo a newer commit.
        """
        memory_id = int(item["id"])
        self.reloads[self._reload_reason(memory_id)] += 1
        self._put(memory_id, item["version"], scope, _copied(item), expires_at)

    def invalidate(self, memory_id: int, version: int) -> bool:
        """Whatever is older than `version` is stale. True when an older body was held."""
        entry = self._entries.get(memory_id)
        if entry is not None and entry.version >= version:
            return False
        self._put(memory_id, version, None, None, None)
        return entry is not None and entry.item is not None

    def clear(self) -> None:
        """Forget all bodies: too much has changed to say what. What is known to be stale stays known."""
        for memory_id, entry in self._entries.items():
            if entry.item is not None:
                self._entries[memory_id] = replace(entry, item=None, size=ENTRY_BYTES)
                self._bytes -= entry.size - ENTRY_BYTES

    def on_commit(self, changes: Sequence[Committed]) -> None:
        """Apply what this process has committed: its next read sees it (read-your-writes)."""
        for change in changes:
            scope = Scope(change.tenant, change.user_id)
            self._put(change.memory_id, change.version, scope, _copied(change.item), change.expires_at)

    def _put(
        self, memory_id: int, version: int, scope: Scope | None, item: MemoryItem | None, expires_at: datetime | None
    ) -> None:
        if not self.enabled:
            return
        known = self._entries.get(memory_id)
        if known is not None and (known.version > version or (known.version == version and item is None)):
            return
        size = ENTRY_BYTES + (0 if item is None else json_size(item))
        if size > self.max_bytes:
            # What cannot be kept still must not leave an older body behind.
            item, size = None, ENTRY_BYTES
        self._drop(memory_id)
        self._entries[memory_id] = _Entry(version, scope, item, expires_at, self._clock() + self.ttl_seconds, size)
        self._bytes += size
        while self._bytes > self.max_bytes:
            self._drop(next(iter(self._entries)))

    def _served(self, scope: Scope, memory_id: int) -> _Entry | None:
        entry = self._entries.get(memory_id)
        if entry is None or entry.item is None or entry.scope != scope or self._clock() >= entry.stale_at:
            return None
        return entry

    def _reload_reason(self, memory_id: int) -> str:
        entry = self._entries.get(memory_id)
        if entry is None:
            return "miss"
        if self._clock() >= entry.stale_at:
            return "ttl"
        return "invalidated" if entry.item is None else "version"

    def _drop(self, memory_id: int) -> None:
        entry = self._entries.pop(memory_id, None)
        if entry is not None:
            self._bytes -= entry.size


def json_size(value: JSON) -> int:
    """Bytes of a value as JSON, about (strings count three bytes per character outside ASCII)."""
    if isinstance(value, str):
        return len(value) + 2 if value.isascii() else 3 * len(value) + 2
    if isinstance(value, Mapping):
        return 2 + sum(len(name) + 4 + json_size(item) for name, item in value.items())
    if isinstance(value, list | tuple):
        return 2 + sum(1 + json_size(item) for item in value)
    return 8


def _copied(value: T) -> T:
    """A copy that shares no mutable part: callers may change what they get, and what they gave."""
    if isinstance(value, dict):
        return cast(T, {name: _copied(item) for name, item in value.items()})
    if isinstance(value, list):
        return cast(T, [_copied(item) for item in value])
    return value
