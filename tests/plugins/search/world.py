"""A backend with all its stores: written through the store, projected when a test says so, and searched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from memplane.cache.ltm import LtmCache
from memplane.contracts import CallOptions, EmbeddingProvider, MemoryItem, Scope, SearchHit, SearchInput
from memplane.outbox.claim import claim, complete
from memplane.outbox.events import ProjectionTarget, Target, Task
from memplane.outbox.truth import read_truths
from memplane.plugins.postgres.backend import PostgresBackend
from memplane.plugins.search.hybrid import HybridBackend
from memplane.plugins.search.settings import HybridSettings
from memplane.projections.milvus import MilvusProjection
from memplane.projections.milvus_client import MilvusConnection
from memplane.projections.neo4j import Neo4jProjection
from memplane.projections.neo4j_client import Neo4jConnection
from memplane.schema.database import Database

NO_OPTIONS = CallOptions()


@dataclass(slots=True)
class World:
    """`me` and `other` are scopes of the test's own: many tests share one database, collection and graph."""

    database: Database
    store: PostgresBackend
    embedding: EmbeddingProvider
    milvus: MilvusProjection
    neo4j: Neo4jProjection
    cache: LtmCache | None = None
    me: Scope = field(default_factory=lambda: Scope("acme", f"ann-{uuid4()}"))
    other: Scope = field(default_factory=lambda: Scope("acme", f"bob-{uuid4()}"))
    made: list[HybridBackend] = field(default_factory=list)

    def search_backend(
        self,
        *,
        milvus: MilvusConnection | None = None,
        neo4j: Neo4jConnection | None = None,
        embedding: EmbeddingProvider | None = None,
        **settings: Any,
    ) -> HybridBackend:
        """The plugin with all branches, unless other connections are given."""
        backend = HybridBackend(
            self.database,
            HybridSettings(**settings),
            milvus=milvus or self.milvus.milvus,
            neo4j=neo4j or self.neo4j.neo4j,
            embedding=embedding or self.embedding,
            cache=self.cache,
        )
        self.made.append(backend)
        return backend

    async def search(
        self,
        query: Any,
        *,
        scope: Scope | None = None,
        limit: int = 10,
        backend: HybridBackend | None = None,
        **more: Any,
    ) -> Sequence[SearchHit]:
        asked: SearchInput = {"query": query, "limit": limit, **more}  # type: ignore[typeddict-item]
        used = backend or (self.made[0] if self.made else self.search_backend())
        return await used.scoped(scope or self.me).search(asked, NO_OPTIONS)

    async def write(self, *drafts: str | Mapping[str, Any], scope: Scope | None = None) -> list[MemoryItem]:
        memories = [{"content": draft} if isinstance(draft, str) else draft for draft in drafts]
        return list(await self.store.scoped(scope or self.me).write({"memories": memories}, NO_OPTIONS))  # type: ignore[typeddict-item]

    async def update(self, memory_id: str, *, scope: Scope | None = None, **change: Any) -> MemoryItem:
        [item] = await self.store.scoped(scope or self.me).update(
            {"memories": [{"id": memory_id, **change}]}, NO_OPTIONS
        )  # type: ignore[typeddict-item]
        return item

    async def delete(self, *ids: str, scope: Scope | None = None) -> None:
        await self.store.scoped(scope or self.me).delete({"ids": list(ids)}, NO_OPTIONS)

    async def project(self, *targets: Target) -> None:
        """Let every waiting event of the targets (all of them by default) take effect, and become old news."""
        for target in targets or (Target.MILVUS, Target.NEO4J):
            await self.drain(self.milvus if target is Target.MILVUS else self.neo4j)
        async with self.database.acquire() as connection:
            await connection.execute(
                self.database.sql("UPDATE {schema}.memory_outbox SET processed_at = processed_at - interval '1 hour'")
            )

    async def drain(self, target: ProjectionTarget) -> None:
        await target.start()
        while events := await claim(self.database, target.name, worker="test", limit=500, lease_seconds=60):
            truths = await read_truths(self.database, events, target.needs)
            await target.project([Task(event, truths[event.id]) for event in events], timeout=30)
            await complete(self.database, events)


def ids(hits: Sequence[SearchHit]) -> list[str]:
    return [hit["memory"]["id"] for hit in hits]


def contents(hits: Sequence[SearchHit]) -> list[Any]:
    return [hit["memory"]["content"] for hit in hits]


def branches(hit: SearchHit) -> Mapping[str, Any]:
    found: Mapping[str, Any] = hit["metadata"]["branches"]
    return found
