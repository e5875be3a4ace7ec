"""The methods of a memory store on Milvus, bound to one scope."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from memplane.contracts import (
    CallOptions,
    DeleteInput,
    DeleteOutput,
    EmbeddingProvider,
    GetInput,
    MemoryItem,
    Purpose,
    QueryInput,
    QueryOutput,
    Scope,
    SearchHit,
    SearchInput,
    UpdateInput,
    WriteInput,
)
from memplane.errors import MemplaneError, PluginError, TargetUnavailable
from memplane.plugins.milvus import changes, reads
from memplane.plugins.milvus.collection import Collection
from memplane.plugins.records.batches import expected_versions, prepare_drafts, prepare_entries
from memplane.plugins.search.request import check_dimensions, parse_query
from memplane.projections.embedding import direction, text_to_embed
from memplane.projections.errors import ProjectionMissing
from memplane.retrieval.embedding import embed_contents
from memplane.retrieval.filters import parse_filter
from memplane.schema.ids import parse_id
from memplane.signal import Signal, SignalAborted, race

T = TypeVar("T")

STRATEGIES = ("vector",)


class MilvusStore:
    """A cheap view on the shared collection. Every read carries its scope, whatever the input says.

    Batches are not atomic. Errors: CONFLICT, NOT_FOUND, INVALID_INPUT, UNSUPPORTED_FILTER, UNSUPPORTED_ORDER,
    UNSUPPORTED_STRATEGY, INVALID_CURSOR, STORE_UNAVAILABLE.
    """

    def __init__(
        self, collection: Collection, scope: Scope, lock: asyncio.Lock, *, require_expected_version: bool
    ) -> None:
        self._collection = collection
        self._scope = scope
        self._lock = lock
        self._require_expected_version = require_expected_version

    async def get(self, input: GetInput, options: CallOptions) -> Sequence[MemoryItem]:  # noqa: A002
        return await _reading(reads.get(self._collection, self._scope, input["ids"], input["keys"]), options.signal)

    async def query(self, input: QueryInput, options: CallOptions) -> QueryOutput:  # noqa: A002
        query = reads.Query(self._collection, self._scope, input)
        return await _reading(query.page(), options.signal)

    async def search(self, input: SearchInput, options: CallOptions) -> Sequence[SearchHit]:  # noqa: A002
        strategy = input.get("strategy")
        if strategy is not None and strategy not in STRATEGIES:
            raise PluginError("UNSUPPORTED_STRATEGY", f"Known strategies: {', '.join(STRATEGIES)}")
        filter = parse_filter(input["filter"]) if "filter" in input else None  # noqa: A001
        text, given = parse_query(input["query"])
        vector: Sequence[float]
        if given is None:
            [vector] = await self._embed([text or ""], "query", options.signal)
        else:
            vector = given
        check_dimensions(vector, self._collection.embedding.dimensions)
        return await _reading(
            reads.search(self._collection, self._scope, vector, filter, input["limit"]), options.signal
        )

    async def write(self, input: WriteInput, options: CallOptions) -> Sequence[MemoryItem]:  # noqa: A002
        drafts = prepare_drafts(input["memories"])
        if not drafts:
            return []
        vectors = await self._embed([draft.content.text for draft in drafts], "document", options.signal)
        return await self._changing(changes.write(self._collection, self._scope, drafts, vectors), options.signal)

    async def update(self, input: UpdateInput, options: CallOptions) -> Sequence[MemoryItem]:  # noqa: A002
        entries = prepare_entries(input["memories"], require_expected_version=self._require_expected_version)
        if not entries:
            return []
        texts = {entry.index: entry.content.text for entry in entries if entry.content is not None}
        made = await self._embed(list(texts.values()), "document", options.signal)
        vectors = dict(zip(texts, made, strict=True))
        return await self._changing(changes.update(self._collection, self._scope, entries, vectors), options.signal)

    async def delete(self, input: DeleteInput, options: CallOptions) -> DeleteOutput:  # noqa: A002
        ids = input["ids"]
        expected = expected_versions(ids, input.get("expectedVersions"), required=self._require_expected_version)
        wanted = {number: text for text in ids if (number := parse_id(text)) is not None}
        if not wanted:
            return DeleteOutput(deleted=[])
        deleted = await self._changing(changes.delete(self._collection, self._scope, wanted, expected), options.signal)
        return DeleteOutput(deleted=deleted)

    async def _embed(self, texts: Sequence[str], purpose: Purpose, signal: Signal | None) -> list[Sequence[float]]:
        """One direction per text. Raises STORE_UNAVAILABLE when the provider fails."""
        provider: EmbeddingProvider = self._collection.embedding
        try:
            made = await embed_contents(provider, list(map(text_to_embed, texts)), purpose=purpose, signal=signal)
        except (MemplaneError, SignalAborted):
            raise
        except Exception:  # noqa: BLE001 - a provider is foreign code, and its text must not travel
            if signal is not None:
                signal.raise_if_aborted()
            raise PluginError("STORE_UNAVAILABLE", "The embedding provider does not answer") from None
        return [direction(vector) for vector in made]

    async def _changing(self, work: Coroutine[Any, Any, T], signal: Signal | None) -> T:
        """One change of the scope at a time, which no cancellation cuts short: Milvus could not take it back."""
        change = asyncio.ensure_future(self._alone(work, signal))
        try:
            return await asyncio.shield(change)
        except asyncio.CancelledError:
            await asyncio.wait([change])
            if not change.cancelled():
                change.exception()
            raise

    async def _alone(self, work: Coroutine[Any, Any, T], signal: Signal | None) -> T:
        try:
            async with self._lock:
                if signal is not None:
                    signal.raise_if_aborted()
                return await _translated(
                    work, "The store became unavailable; the change may or may not have been stored, or in part"
                )
        finally:
            work.close()


async def _reading(work: Coroutine[Any, Any, T], signal: Signal | None) -> T:
    if signal is not None and signal.aborted:
        work.close()
        signal.raise_if_aborted()
    return await race(_translated(work, "The store is unavailable"), signal)


async def _translated(work: Coroutine[Any, Any, T], message: str) -> T:
    try:
        return await work
    except (TargetUnavailable, ProjectionMissing):
        raise PluginError("STORE_UNAVAILABLE", message) from None
