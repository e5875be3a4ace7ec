"""A backend as it runs: a store, workers and searches, each with connections of its own, and dumps of its targets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from memplane.contracts import CallOptions, Scope
from memplane.outbox.events import ProjectionTarget, Target
from memplane.outbox.worker import OutboxWorker
from memplane.plugins.postgres.backend import PostgresBackend
from memplane.plugins.postgres.store import PostgresStore
from memplane.plugins.search.hybrid import HybridBackend
from memplane.plugins.search.settings import HybridSettings
from memplane.projections.generation import COLUMNS, Generation, generation_of
from memplane.projections.milvus import MilvusProjection
from memplane.projections.milvus_client import MilvusConnection
from memplane.projections.milvus_row import SCALARS
from memplane.projections.neo4j import Neo4jProjection
from memplane.projections.neo4j_client import Neo4jConnection
from memplane.rebuild import rebuild_milvus
from memplane.rebuild.report import Report
from memplane.reconcile import reconcile
from memplane.schema.database import Database
from memplane.schema.identity import read_identity_on
from memplane.settings import MilvusSettings, Neo4jSettings, RebuildSettings
from memplane.signal import Signal
from tests.outbox.world import quick, rows, until
from tests.projections.support import Letters, stored_embeddings

NO_OPTIONS = CallOptions()
SCOPE = Scope("acme", "ann")


@dataclass(frozen=True)
class Graph:
    """All that a backend has in Neo4j."""

    nodes: list[dict[str, Any]]
    edges: list[dict[str, Any]]


@dataclass
class World:
    """One backend. `provider` is the model of the generation in use; `targets` get events."""

    database: Database
    milvus_settings: MilvusSettings
    neo4j_settings: Neo4jSettings
    provider: Letters = field(default_factory=Letters)
    targets: Collection[Target] = (Target.MILVUS, Target.NEO4J)

    def __post_init__(self) -> None:
        self._backend = ""
        self.milvus = MilvusConnection(self.milvus_settings)
        self.neo4j = Neo4jConnection(self.neo4j_settings)
        self.store: PostgresStore = PostgresBackend(self.database, targets=self.targets).scoped(SCOPE)

    # -- truth ----------------------------------------------------------------------------------------------------

    async def write(self, count: int, *, about: Sequence[str] = (), start: int = 0) -> list[str]:
        """New memories; each points to `about`."""
        relations = [{"type": "about", "target": target} for target in about]
        drafts: Any = [
            {"content": f"memory number {start + i}", "metadata": {"category": "abc"[i % 3], "relations": relations}}
            for i in range(count)
        ]
        return [item["id"] for item in await self.store.write({"memories": drafts}, NO_OPTIONS)]

    async def update(self, ids: Sequence[str], category: str) -> None:
        entries: Any = [{"id": one, "metadata": {"category": category}} for one in ids]
        await self.store.update({"memories": entries}, NO_OPTIONS)

    async def delete(self, ids: Sequence[str]) -> None:
        await self.store.delete({"ids": list(ids)}, NO_OPTIONS)

    # -- workers --------------------------------------------------------------------------------------------------

    def projection(
        self, target: Target = Target.MILVUS, provider: Letters | None = None, previous: Letters | None = None
    ) -> Any:
        """A projection as a worker has it, on a connection of its own."""
        if target is Target.NEO4J:
            return Neo4jProjection(self.database, Neo4jConnection(self.neo4j_settings))
        return MilvusProjection(
            self.database,
            MilvusConnection(self.milvus_settings),
            stored_embeddings(self.database, provider or self.provider),
            None if previous is None else stored_embeddings(self.database, previous),
        )

    @asynccontextmanager
    async def working(self, *chosen: Target | ProjectionTarget) -> AsyncIterator[None]:
        """Outbox workers of these projections run meanwhile; by default one of each target."""
        projections = [self.projection(one) if isinstance(one, Target) else one for one in chosen or self.targets]
        stop = Signal()
        workers = [
            OutboxWorker(
                self.database, one, quick(call_timeout=20, lease_seconds=30, max_attempts=3), worker_id=f"w{number}"
            )
            for number, one in enumerate(projections)
        ]
        tasks = [asyncio.create_task(worker.run(stop)) for worker in workers]
        try:
            yield
        finally:
            stop.abort()
            await asyncio.wait_for(asyncio.gather(*tasks), 60)

    async def drained(self, target: Target | None = None, seconds: float = 60) -> None:
        """Wait until every event (of the target) is processed."""

        async def done() -> bool:
            found = await rows(self.database, "$1::text IS NULL OR target = $1", target)
            return {row["status"] for row in found} <= {"processed"}

        await until(done, seconds)

    # -- rebuilds -------------------------------------------------------------------------------------------------

    async def rebuild(self, provider: Letters | None = None, **options: Any) -> Report:
        """`rebuild_milvus` with small pages."""
        settings = RebuildSettings(**{"page_size": 50, **options.pop("settings", {})})
        return await rebuild_milvus(
            self.database, self.milvus, stored_embeddings(self.database, provider or self.provider), settings, **options
        )

    async def equals(self, target: Target = Target.MILVUS, provider: Letters | None = None) -> dict[str, int]:
        """What a full audit of the active generation finds; {} when nothing differs."""
        projection = self.projection(target, provider)
        try:
            report = await reconcile(self.database, projection, mode="audit", kind="full")
        finally:
            await projection.close()
        assert report.state == "completed", report.error
        return dict(report.mismatches)

    # -- reads ----------------------------------------------------------------------------------------------------

    def searches(self, provider: Letters | None = None, previous: Letters | None = None) -> Any:
        """The search of a process that nobody restarts."""
        backend = HybridBackend(
            self.database,
            HybridSettings(branch_timeout=30),
            milvus=MilvusConnection(self.milvus_settings),
            embedding=provider or self.provider,
            embedding_previous=previous,
        )
        return backend.scoped(SCOPE)

    async def generation(self, number: int | None) -> Generation:
        """A generation by its number, whatever its state."""
        async with self.database.acquire() as connection:
            row = await connection.fetchrow(
                self.database.sql(f"SELECT {COLUMNS} FROM {{schema}}.projection_generation WHERE id = $1"), number
            )
            return generation_of(row, str(await read_identity_on(connection, self.database)))

    async def dump_milvus(self, generation: Generation) -> dict[int, dict[str, Any]]:
        """Every row of a collection by memory id, vectors included; without its digest, which names the generation."""
        found = await self.milvus.call(
            "query",
            generation.collection,
            filter="memory_id >= 0",
            output_fields=[*SCALARS, "vector"],
            consistency_level="Strong",
            limit=16000,
        )
        return {row["memory_id"]: dict(row) for row in found}

    async def cypher(self, query: str, **parameters: Any) -> list[dict[str, Any]]:
        """A query on the graph; `$backend` is this backend's id."""
        if not self._backend:
            async with self.database.acquire() as connection:
                self._backend = str(await read_identity_on(connection, self.database))
        return await self.neo4j.run(query, {"backend": self._backend, **parameters})

    async def dump_neo4j(self) -> Graph:
        """Every node with all its properties, and every relation with all of its."""
        nodes = await self.cypher("MATCH (m:Memory {backend: $backend}) RETURN properties(m) AS p ORDER BY m.memory_id")
        edges = await self.cypher(
            "MATCH (s:Memory {backend: $backend})-[r]->(t) RETURN s.memory_id AS source, type(r) AS kind,"
            " properties(r) AS p, t.memory_id AS target, t.backend AS backend ORDER BY source, target, r.type"
        )
        return Graph([row["p"] for row in nodes], edges)

    async def close(self) -> None:
        """Drop what was made and close the connections."""
        async with self.database.acquire() as connection:
            rows = await connection.fetch(
                self.database.sql("SELECT collection FROM {schema}.projection_generation WHERE collection IS NOT NULL")
            )
            backend = await connection.fetchval(self.database.sql("SELECT backend_id FROM {schema}.backend_identity"))
        for row in rows:
            if await self.milvus.call("has_collection", row["collection"]):
                await self.milvus.call("drop_collection", row["collection"])
        await self.neo4j.run("MATCH (m:Memory {backend: $backend}) DETACH DELETE m", {"backend": str(backend)})
        await self.milvus.close()
        await self.neo4j.close()
