"""The vector branch: nearest in Milvus, corrected by what Milvus does not know yet."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from memplane.contracts import EmbeddingProvider, Scope
from memplane.errors import MemplaneError, PluginError, TargetUnavailable
from memplane.outbox.events import Target
from memplane.plugins.postgres.filters import Binds, to_sql
from memplane.plugins.postgres.rows import LIVE
from memplane.plugins.search.milvus_filter import NONE, to_milvus
from memplane.plugins.search.ranking import Found, replaced
from memplane.plugins.search.request import check_dimensions
from memplane.plugins.search.unfinished import Fresh, Space, Unfinished
from memplane.projections.embedding import StoredEmbeddings, direction, text_to_embed
from memplane.projections.errors import ProjectionMissing
from memplane.projections.generation import Generation, read_generation
from memplane.projections.milvus_client import MilvusConnection
from memplane.projections.milvus_search import search_vectors
from memplane.retrieval.embedding import embed_contents
from memplane.retrieval.filters import Filter
from memplane.schema.database import Database
from memplane.signal import Signal

MAX_SELECTED = 10_000
"""Memories that a filter may select when Milvus cannot express it."""

GENERATION_SECONDS = 5.0
"""How long the active generation is believed. Each search checks it beside its question to Milvus, and asks again when
it was switched; a retired collection stays much longer than that."""


EMBEDDING_SHARE = 0.8
"""Part of the branch's time that embedding the question, or what is new, may take."""


@dataclass(frozen=True, slots=True)
class VectorQuery:
    """`vector` has length 1. `condition`: a Milvus expression for the filter, None without one."""

    scope: Scope
    vector: Sequence[float]
    filter: Filter | None
    condition: str | None
    generation: Generation | None
    space: Space


class GenerationChanged(Exception):  # noqa: N818 - names what happened; never leaves this package
    """The question was made for a generation that is not the active one any more: `prepare` it again."""


class VectorSearch:
    """Vector search over the active generation. `clock` is monotonic, `now` is wall time.

    `embeddings`: those of the settings, the current model first. A question is always embedded by the model of the
    generation that is searched.
    """

    def __init__(
        self,
        database: Database,
        milvus: MilvusConnection,
        embeddings: Sequence[StoredEmbeddings],
        *,
        unfinished: int,
        timeout: float,
        cooldown: float,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._database = database
        self._milvus = milvus
        self._providers = [one.provider for one in embeddings]
        self._unfinished = Unfinished(database, embeddings, embedding_seconds=timeout * EMBEDDING_SHARE)
        self._limit = unfinished
        self._timeout = timeout
        self._cooldown = cooldown
        self._embedding_away_until = float("-inf")
        self._clock = clock
        self._now = now
        self._generation: Generation | None = None
        self._generation_until = float("-inf")

    @property
    def embeds(self) -> bool:
        """Whether questions in words can be asked."""
        return bool(self._providers)

    async def prepare(
        self,
        scope: Scope,
        *,
        text: str | None,
        vector: Sequence[float] | None,
        filter: Filter | None,  # noqa: A002 - the wire's name
        signal: Signal | None,
    ) -> VectorQuery:
        """The question as a vector of the active generation, and the filter as Milvus takes it.

        Raises INVALID_INPUT for a vector of other dimensions or a question that nothing here can embed,
        UNSUPPORTED_FILTER, `TargetUnavailable("embedding", …)`.
        """
        generation = await self._active()
        space = self._space(generation)
        if vector is not None:
            check_dimensions(vector, space[2])
        else:
            vector = await self._embedded(text or "", space, signal)
        return VectorQuery(scope, vector, filter, await self._condition(scope, filter), generation, space)

    async def search(self, query: VectorQuery, *, limit: int) -> list[Found]:
        """The nearest memories, best first; at most `limit`.

        Raises `GenerationChanged`, and what `search_vectors` and the embeddings raise.
        """
        # Milvus is asked first, and in this task: it is what takes longest.
        beside = asyncio.get_running_loop().create_task(self._fresh(query))
        try:
            in_milvus = await self._in_milvus(query, limit)
        except asyncio.CancelledError:
            beside.cancel()
            raise
        finally:
            await asyncio.gather(beside, return_exceptions=True)
        fresh = beside.result()
        if self._limit and fresh.generation != _id(query.generation):
            self._generation_until = float("-inf")
            raise GenerationChanged
        if fresh.stale:
            known = [found for found in in_milvus if found.memory_id not in fresh.stale]
            return replaced(known, fresh.hits)[:limit]
        return in_milvus

    async def current(self, query: VectorQuery, ids: Sequence[int]) -> list[Found]:
        """The given memories, compared as they are now."""
        return await self._unfinished.current(query.scope, query.vector, query.space, ids)

    async def _in_milvus(self, query: VectorQuery, limit: int) -> list[Found]:
        if query.generation is None or query.condition == NONE:
            # Nothing was ever projected, or nothing matches.
            return []
        try:
            hits = await search_vectors(
                self._milvus,
                query.generation,
                query.scope,
                query.vector,
                limit=limit,
                now=self._now(),
                filter_expr=query.condition,
                timeout=self._timeout,
            )
        except ProjectionMissing:
            self._generation_until = float("-inf")
            if _id(await self._active()) != query.generation.id:
                # A rebuild has replaced it, and its time of grace is over.
                raise GenerationChanged from None
            raise
        return [Found(*hit) for hit in hits]

    async def _fresh(self, query: VectorQuery) -> Fresh:
        if self._limit == 0:
            return Fresh(frozenset(), [])
        return await self._unfinished.newest(
            query.scope, query.vector, query.space, limit=self._limit, filter=query.filter
        )

    async def _active(self) -> Generation | None:
        now = self._clock()
        # Without the merge of what is unfinished, nothing would tell that it was switched.
        if now >= self._generation_until or self._limit == 0:
            self._generation = await read_generation(self._database, Target.MILVUS)
            if self._generation is not None:
                self._generation_until = now + GENERATION_SECONDS
        return self._generation

    def _space(self, generation: Generation | None) -> Space:
        if generation is not None:
            return generation.model, generation.revision, generation.dimensions
        if not self._providers:
            raise TargetUnavailable("milvus", "nothing has been projected yet")
        return _space_of(self._providers[0])

    async def _embedded(self, text: str, space: Space, signal: Signal | None) -> Sequence[float]:
        if not self._providers:
            raise PluginError("INVALID_INPUT", "query.vector is required: no embedding model is configured")
        provider = next((one for one in self._providers if _space_of(one) == space), None)
        if provider is None:
            raise TargetUnavailable("embedding", "the active generation holds vectors of another model")
        if self._clock() < self._embedding_away_until:
            raise TargetUnavailable("embedding", "the provider failed a moment ago")
        try:
            # Less than the branch has: a provider that hangs must not look like an index that does.
            async with asyncio.timeout(self._timeout * EMBEDDING_SHARE):
                [vector] = await embed_contents(provider, [text_to_embed(text)], purpose="query", signal=signal)
        except MemplaneError:
            raise
        except Exception:  # noqa: BLE001 - a provider is foreign code, and its text must not travel
            if signal is not None:
                signal.raise_if_aborted()
            self._embedding_away_until = self._clock() + self._cooldown
            raise TargetUnavailable("embedding", "the provider does not answer") from None
        return direction(vector)

    async def _condition(self, scope: Scope, filter: Filter | None) -> str | None:  # noqa: A002
        if filter is None:
            return None
        condition = to_milvus(filter, lite=self._milvus.lite)
        if condition is not None:
            return condition
        binds = Binds(scope.tenant, scope.user)
        statement = (
            f"SELECT m.id FROM {{schema}}.long_term_memory AS m WHERE m.tenant = $1 AND m.user_id = $2 AND {LIVE} "
            f"AND {to_sql(filter, binds)} LIMIT {MAX_SELECTED + 1}"
        )
        async with self._database.acquire() as connection:
            rows = await connection.fetch(self._database.sql(statement), *binds.values)
        if len(rows) > MAX_SELECTED:
            raise PluginError(
                "UNSUPPORTED_FILTER",
                f"The vector index cannot express this filter, and it selects more than {MAX_SELECTED} memories",
            )
        return f"memory_id in [{', '.join(str(row['id']) for row in rows)}]" if rows else NONE


def _id(generation: Generation | None) -> int | None:
    return None if generation is None else generation.id


def _space_of(provider: EmbeddingProvider) -> Space:
    return provider.model, provider.revision, provider.dimensions
