"""GET by id from the cache, for `consistency: cached` (design section 8).

Expiry is checked, staleness is bounded by the cache's TTL, and what this process wrote it sees at once. Everything but
GET by id goes to the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from memplane.cache.ltm import LtmCache
from memplane.contracts import (
    CallOptions,
    Capabilities,
    DeleteInput,
    DeleteOutput,
    GetInput,
    MemoryItem,
    MemoryStore,
    QueryInput,
    QueryOutput,
    Scope,
    StoreBackend,
    UpdateInput,
    WriteInput,
)
from memplane.schema.ids import parse_id
from memplane.schema.times import parse_time


class CachedBackend:
    """A store backend whose GET by id may be answered by the cache. It tells the cache of nothing but its reads."""

    def __init__(self, backend: StoreBackend, cache: LtmCache) -> None:
        self._backend = backend
        self._cache = cache

    @property
    def capabilities(self) -> Capabilities:
        return self._backend.capabilities

    async def start(self) -> None:
        await self._backend.start()

    async def close(self) -> None:
        await self._backend.close()

    def scoped(self, scope: Scope) -> CachedStore:
        return CachedStore(self._backend.scoped(scope), self._cache, scope)


class CachedStore:
    """One scope of it."""

    def __init__(self, store: MemoryStore, cache: LtmCache, scope: Scope) -> None:
        self._store = store
        self._cache = cache
        self._scope = scope

    async def get(self, input: GetInput, options: CallOptions) -> Sequence[MemoryItem]:  # noqa: A002
        """Bodies of the cache, and the rest from the store in one call. Keys are always asked of the store."""
        if options.signal is not None:
            options.signal.raise_if_aborted()
        held = {text: item for text in input["ids"] if (item := self._held(text)) is not None}
        missing = [text for text in input["ids"] if text not in held]
        read: Sequence[MemoryItem] = ()
        if missing or input["keys"]:
            read = await self._store.get(GetInput(ids=missing, keys=input["keys"]), options)
            for item in read:
                self._cache.put(self._scope, item, expires_at=_expiry(item))
        # A key may name a memory that an id has named, too: the store's answer is the newer one.
        known = {item["id"] for item in read}
        return [*read, *(item for item in held.values() if item["id"] not in known)]

    def _held(self, text: str) -> MemoryItem | None:
        memory_id = parse_id(text)
        return None if memory_id is None else self._cache.latest(self._scope, memory_id)

    async def query(self, input: QueryInput, options: CallOptions) -> QueryOutput:  # noqa: A002
        return await self._store.query(input, options)

    async def write(self, input: WriteInput, options: CallOptions) -> Sequence[MemoryItem]:  # noqa: A002
        return await self._store.write(input, options)

    async def update(self, input: UpdateInput, options: CallOptions) -> Sequence[MemoryItem]:  # noqa: A002
        return await self._store.update(input, options)

    async def delete(self, input: DeleteInput, options: CallOptions) -> DeleteOutput:  # noqa: A002
        return await self._store.delete(input, options)


def _expiry(item: MemoryItem) -> datetime | None:
    """The reserved field; the store has validated it."""
    return parse_time(item.get("metadata", {}).get("expires_at"))
