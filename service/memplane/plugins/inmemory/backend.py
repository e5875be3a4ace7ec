"""`InMemoryBackend`: every promise of the store contract without a database (design sections 3 and 5).

Each operation prepares its input first, then runs under one lock without awaiting: batches are atomic for tasks and
threads alike. Content and metadata are kept as canonical JSON, so no caller shares an object with the store.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from memplane.contracts import (
    CallOptions,
    Capabilities,
    DeleteInput,
    DeleteOutput,
    GetInput,
    MemoryItem,
    MemoryUpdateEntry,
    QueryInput,
    QueryOutput,
    Scope,
    SearchHit,
    SearchInput,
    UpdateInput,
    WriteInput,
)
from memplane.errors import PluginError
from memplane.plugins.inmemory.keywords import STRATEGIES, check_strategy, question, rank
from memplane.plugins.inmemory.paging import Paging
from memplane.plugins.inmemory.rows import Parts, Row, Space, prepare
from memplane.plugins.postgres.documents import check_scope_part, prepare_key
from memplane.plugins.postgres.order import ORDER_FIELDS
from memplane.plugins.postgres.reserved import Reserved
from memplane.plugins.postgres.tokens import lexemes
from memplane.plugins.registry import Resources
from memplane.retrieval.filters import OPERATORS, matches, parse_filter
from memplane.schema.canonical import check_text, invalid
from memplane.schema.ids import parse_id, quoted
from memplane.settings import StoreSettings

Clock = Callable[[], datetime]

CAPABILITIES: Final[Capabilities] = {
    "atomicBatches": True,
    "strategies": STRATEGIES,
    "filters": OPERATORS,
    "orderFields": ORDER_FIELDS,
}


class InMemorySettings(BaseModel):
    """Options of the `inmemory` store."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    require_expected_version: bool | None = Field(
        None, description="UPDATE and DELETE must name the version they expect; by default as in the store settings"
    )


class InMemoryBackend:
    """A `StoreBackend`. Its memories live as long as the object; `close` keeps them."""

    def __init__(self, settings: InMemorySettings | None = None, *, now: Clock = lambda: datetime.now(UTC)) -> None:
        self.settings = settings or InMemorySettings()
        self.now = now
        self.lock = threading.RLock()
        self._spaces: dict[Scope, Space] = {}
        self._last_id = 0

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    async def start(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing to close."""

    def scoped(self, scope: Scope) -> InMemoryStore:
        """The store of one tenant and user. Raises INVALID_INPUT for an empty or overlong name."""
        check_scope_part(scope.tenant, "tenant")
        check_scope_part(scope.user, "user")
        return InMemoryStore(self, scope)

    def space(self, scope: Scope) -> Space:
        """The memories of a scope; hold the lock."""
        return self._spaces.setdefault(scope, Space())

    def next_id(self) -> int:
        """A new id, never used before; hold the lock."""
        self._last_id += 1
        return self._last_id


class InMemoryStore:
    """A `MemoryStore` with `search`, bound to one scope."""

    def __init__(self, backend: InMemoryBackend, scope: Scope) -> None:
        self._backend = backend
        self._scope = scope

    async def get(self, input: GetInput, options: CallOptions) -> list[MemoryItem]:  # noqa: A002
        """The live memories among ids and keys, each once."""
        _check_signal(options)
        keys = [check_text(key, f"keys[{index}]") for index, key in enumerate(input["keys"])]
        with self._backend.lock:
            space, now = self._backend.space(self._scope), self._backend.now()
            ids = [*map(parse_id, input["ids"]), *map(space.ids_by_key.get, keys)]
            rows = [space.live(memory_id, now) for memory_id in dict.fromkeys(ids)]
        return [row.item() for row in rows if row is not None]

    async def query(self, input: QueryInput, options: CallOptions) -> QueryOutput:  # noqa: A002
        """One page. Raises UNSUPPORTED_FILTER, UNSUPPORTED_ORDER, INVALID_CURSOR."""
        _check_signal(options)
        matching = self._matching(input)
        rows, cursor = Paging(self._scope, input).page(matching)
        output: QueryOutput = {"items": [row.item() for row in rows]}
        if cursor is not None:
            output["nextCursor"] = cursor
        return output

    async def search(self, input: SearchInput, options: CallOptions) -> list[SearchHit]:  # noqa: A002
        """Keyword search. Raises UNSUPPORTED_STRATEGY, UNSUPPORTED_FILTER, INVALID_INPUT for a query without text."""
        _check_signal(options)
        check_strategy(input.get("strategy"))
        text = question(input["query"])
        hits = rank(self._scope, text, list(self._matching(input)), input["limit"])
        return [{"memory": row.item(), "score": score} for row, score in hits]

    async def write(self, input: WriteInput, options: CallOptions) -> list[MemoryItem]:  # noqa: A002
        """Write all drafts or none. Raises INVALID_INPUT, CONFLICT when a key is taken."""
        _check_signal(options)
        prepared = [prepare(draft, f"memories[{index}]") for index, draft in enumerate(input["memories"])]
        keys = [
            prepare_key(draft["key"], f"memories[{index}].key") if "key" in draft else None
            for index, draft in enumerate(input["memories"])
        ]
        with self._backend.lock:
            space, now = self._backend.space(self._scope), self._backend.now()
            _check_keys(space, keys, now)
            for index, parts in enumerate(prepared):
                _check_relations(space, parts, f"memories[{index}]", now)
            rows = [self._new_row(key, parts, now) for key, parts in zip(keys, prepared, strict=True)]
            for row in rows:
                if row.key is not None and row.key in space.ids_by_key:
                    space.drop(space.ids_by_key[row.key])
                space.put(row)
        return [row.item() for row in rows]

    async def update(self, input: UpdateInput, options: CallOptions) -> list[MemoryItem]:  # noqa: A002
        """Update all entries or none. Raises INVALID_INPUT, NOT_FOUND, CONFLICT for an unexpected version."""
        _check_signal(options)
        entries = input["memories"]
        prepared = [prepare(entry, f"memories[{index}]") for index, entry in enumerate(entries)]
        for index, entry in enumerate(entries):
            if self._backend.settings.require_expected_version and "expectedVersion" not in entry:
                invalid(f"memories[{index}].expectedVersion is required")
        with self._backend.lock:
            space, now = self._backend.space(self._scope), self._backend.now()
            rows = [_expected(space, entry, now) for entry in entries]
            for index, parts in enumerate(prepared):
                _check_relations(space, parts, f"memories[{index}]", now)
            changed = [self._changed(row, parts, now) for row, parts in zip(rows, prepared, strict=True)]
            for row in changed:
                space.put(row)
        return [row.item() for row in changed]

    async def delete(self, input: DeleteInput, options: CallOptions) -> DeleteOutput:  # noqa: A002
        """Delete the ids that exist, or nothing when a version is not the expected one (CONFLICT)."""
        _check_signal(options)
        expected = input.get("expectedVersions", {})
        for memory_id in input["ids"]:
            if self._backend.settings.require_expected_version and memory_id not in expected:
                invalid(f"expectedVersions must name every id: {quoted(memory_id)} is missing")
        with self._backend.lock:
            space, now = self._backend.space(self._scope), self._backend.now()
            rows = [row for text in input["ids"] if (row := space.live(parse_id(text), now)) is not None]
            for row in rows:
                _check_version(row, expected.get(str(row.id)))
            for row in rows:
                space.drop(row.id)
        return {"deleted": [str(row.id) for row in rows]}

    def _matching(self, request: QueryInput | SearchInput) -> Iterator[Row]:
        parsed = parse_filter(request["filter"]) if "filter" in request else None
        with self._backend.lock:
            rows, now = list(self._backend.space(self._scope).rows.values()), self._backend.now()
        return (row for row in rows if row.live(now) and (parsed is None or matches(parsed, row.view())))

    def _new_row(self, key: str | None, parts: Parts, now: datetime) -> Row:
        assert parts.content is not None
        words = frozenset(lexemes(self._scope.tenant, self._scope.user, parts.content.text))
        return Row(self._backend.next_id(), key, parts.content, parts.metadata, 1, now, now, words)

    def _changed(self, row: Row, parts: Parts, now: datetime) -> Row:
        content = parts.content or row.content
        words = row.lexemes
        if parts.content is not None:
            words = frozenset(lexemes(self._scope.tenant, self._scope.user, content.text))
        return replace(
            row,
            content=content,
            metadata=parts.metadata or row.metadata,
            version=row.version + 1,
            updated_at=max(now, row.updated_at),
            lexemes=words,
        )


def _check_signal(options: CallOptions) -> None:
    if options.signal is not None:
        options.signal.raise_if_aborted()


def _check_keys(space: Space, keys: Sequence[str | None], now: datetime) -> None:
    seen: set[str] = set()
    for key in keys:
        if key is None:
            continue
        if key in seen:
            raise PluginError("CONFLICT", f"Key {quoted(key)} appears twice in the batch")
        seen.add(key)
        if space.live(space.ids_by_key.get(key), now) is not None:
            raise PluginError("CONFLICT", f"Key {quoted(key)} is taken")


def _check_relations(space: Space, parts: Parts, where: str, now: datetime) -> None:
    reserved = Reserved() if parts.metadata is None else parts.metadata.reserved
    for index, relation in enumerate(reserved.relations):
        if space.live(relation.target, now) is None:
            invalid(f"{where}.metadata.relations[{index}].target is not a memory of this scope")


def _expected(space: Space, entry: MemoryUpdateEntry, now: datetime) -> Row:
    row = space.live(parse_id(entry["id"]), now)
    if row is None:
        raise PluginError("NOT_FOUND", f"Memory {quoted(entry['id'])} does not exist")
    _check_version(row, entry.get("expectedVersion"))
    return row


def _check_version(row: Row, expected: int | None) -> None:
    if expected is not None and expected != row.version:
        raise PluginError("CONFLICT", f"Memory {quoted(str(row.id))} is at version {row.version}, not {expected}")


class InMemoryPlugin:
    """The entry point."""

    settings_model = InMemorySettings

    def create(self, settings: InMemorySettings, resources: Resources) -> InMemoryBackend:
        store = getattr(resources.settings, "store", None)
        if settings.require_expected_version is None and isinstance(store, StoreSettings):
            settings = InMemorySettings(require_expected_version=store.require_expected_version)
        return InMemoryBackend(settings)


plugin = InMemoryPlugin()
