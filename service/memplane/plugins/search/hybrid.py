"""`hybrid`: vectors in Milvus, keywords in PostgreSQL, relations in Neo4j, fused; whatever of them is configured."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TypeVar

import asyncpg
from pydantic import BaseModel

from memplane.cache.ltm import LtmCache
from memplane.contracts import CallOptions, EmbeddingProvider, Scope, SearchHit, SearchInput
from memplane.errors import MemplaneError, SettingsError
from memplane.plugins.postgres.backfill import backfill_tokens
from memplane.plugins.postgres.keyword import KeywordSearch
from memplane.plugins.registry import Resources
from memplane.plugins.search.branches import Guard
from memplane.plugins.search.cancel import until_aborted
from memplane.plugins.search.graph import GraphSearch
from memplane.plugins.search.hydrate import Hydration
from memplane.plugins.search.own import refuse_foreign_store
from memplane.plugins.search.request import HYBRID, parse_request
from memplane.plugins.search.search import Branches, Search
from memplane.plugins.search.settings import BRANCHES, HybridSettings
from memplane.plugins.search.vector import VectorSearch
from memplane.projections.embedding import StoredEmbeddings
from memplane.projections.milvus_client import MilvusConnection
from memplane.projections.neo4j_client import Neo4jConnection
from memplane.retrieval.embedding import embed_contents
from memplane.schema.database import Database

_log = logging.getLogger(__name__)


class HybridBackend:
    """Implements `SearchBackend`. Closes nothing that it was given."""

    def __init__(
        self,
        database: Database,
        settings: HybridSettings,
        *,
        milvus: MilvusConnection | None = None,
        neo4j: Neo4jConnection | None = None,
        embedding: EmbeddingProvider | None = None,
        embedding_previous: EmbeddingProvider | None = None,
        cache: LtmCache | None = None,
    ) -> None:
        self.settings = settings
        self._database = database
        self._filling: asyncio.Task[None] | None = None
        configured = {"vector": milvus is not None, "keyword": True, "graph": neo4j is not None}
        for branch in settings.branches or ():
            if not configured[branch]:
                raise SettingsError(f"search.options.branches names {branch}, but its store is not configured")
        names = tuple(one for one in BRANCHES if configured[one] and one in (settings.branches or BRANCHES))
        self.branches = Branches(
            names=names,
            keyword=KeywordSearch(database),
            hydration=Hydration(database, cache),
            guards={
                name: Guard(name, timeout=settings.branch_timeout, cooldown=settings.cooldown) for name in BRANCHES
            },
            vector=self._vector(milvus, (embedding, embedding_previous)) if milvus is not None else None,
            graph=GraphSearch(database, neo4j, timeout=settings.branch_timeout) if neo4j is not None else None,
        )

    @property
    def strategies(self) -> Sequence[str]:
        """What a SEARCH may name: each branch, and all of them fused."""
        return (*self.branches.names, HYBRID)

    def _vector(self, milvus: MilvusConnection, providers: Sequence[EmbeddingProvider | None]) -> VectorSearch:
        async def embed(provider: EmbeddingProvider, texts: Sequence[str], size: int) -> Sequence[Sequence[float]]:
            return await embed_contents(provider, texts, size)

        return VectorSearch(
            self._database,
            milvus,
            [StoredEmbeddings(self._database, one, embed) for one in providers if one is not None],
            unfinished=self.settings.unfinished,
            timeout=self.settings.branch_timeout,
            cooldown=self.settings.cooldown,
        )

    async def start(self) -> None:
        """Begin to tokenize memories of older releases, beside the searches. Idempotent."""
        if self._filling is None and "keyword" in self.branches.names:
            self._filling = asyncio.get_running_loop().create_task(self._fill())

    async def close(self) -> None:
        filling, self._filling = self._filling, None
        if filling is not None:
            filling.cancel()
            await asyncio.gather(filling, return_exceptions=True)

    async def _fill(self) -> None:
        try:
            done = await backfill_tokens(self._database)
        except (MemplaneError, OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            _log.warning(
                "tokenizing older memories stopped; it goes on at the next start", extra={"error": type(error).__name__}
            )
            return
        if done:
            _log.info("older memories were tokenized for keyword search", extra={"memories": done})

    def scoped(self, scope: Scope) -> ScopedSearch:
        return ScopedSearch(self, scope)


class ScopedSearch:
    """The search of one tenant and user."""

    def __init__(self, backend: HybridBackend, scope: Scope) -> None:
        self._backend = backend
        self._scope = scope

    async def search(self, input: SearchInput, options: CallOptions) -> Sequence[SearchHit]:  # noqa: A002
        """Hits, best first, at most `limit`.

        Raises `PluginError`: INVALID_INPUT, UNSUPPORTED_STRATEGY, UNSUPPORTED_FILTER, SEARCH_UNAVAILABLE.
        """
        backend = self._backend
        request = parse_request(input, backend.branches.names, backend.settings)
        search = Search(backend.branches, self._scope, request, options.signal)
        return await until_aborted(search.run(), options.signal)


class HybridPlugin:
    """The entry point `hybrid` of `memplane.search`."""

    settings_model: type[BaseModel] = HybridSettings

    def create(self, settings: HybridSettings, resources: Resources) -> HybridBackend:
        """Needs `database`; `milvus`, `neo4j`, `embedding` and `cache` where they are configured."""
        refuse_foreign_store(resources, "hybrid")
        return HybridBackend(
            resources.require("database", "hybrid"),
            settings,
            milvus=_typed(resources.milvus, MilvusConnection),
            neo4j=_typed(resources.neo4j, Neo4jConnection),
            embedding=resources.embedding,
            embedding_previous=resources.embedding_previous,
            cache=_typed(resources.cache, LtmCache),
        )


T = TypeVar("T")


def _typed(resource: object, kind: type[T]) -> T | None:
    if resource is not None and not isinstance(resource, kind):
        raise SettingsError(f"the plugin 'hybrid' needs a {kind.__name__}, not a {type(resource).__name__}")
    return resource


plugin = HybridPlugin()
