"""What every process of a backend is built on: the truth, the projections' connections, the embedding provider.

Building them does no I/O; each connects on first use, and `close` closes all of them in reverse order.

With another store than `postgres` the truth is that store's: there are no events, no projections, no outbox workers,
and PostgreSQL is optional (recovery tasks live in it).
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from memplane.api.logs import describe
from memplane.contracts import EmbeddingProvider
from memplane.errors import SettingsError
from memplane.outbox.events import ProjectionTarget, Target
from memplane.outbox.metrics import Metrics
from memplane.outbox.worker import OutboxWorker
from memplane.plugins.postgres.plugin import configured_targets
from memplane.plugins.registry import Resources, create_embedding
from memplane.projections.embedding import StoredEmbeddings
from memplane.projections.milvus import MilvusProjection
from memplane.projections.milvus_client import MilvusConnection
from memplane.projections.neo4j import Neo4jProjection
from memplane.projections.neo4j_client import Neo4jConnection
from memplane.retrieval import embed_contents
from memplane.schema.database import Database
from memplane.schema.identity import read_identity
from memplane.schema.migrate import check as check_schema
from memplane.settings import EmbeddingSettings, Settings
from memplane.signal import Signal
from memplane.tracing import Tracer

log = logging.getLogger(__name__)


def truth_in_postgres(settings: Settings) -> bool:
    """Whether memories are in PostgreSQL; otherwise they are wherever another store plugin keeps them."""
    return settings.store.plugin == "postgres"


def enabled_targets(settings: Settings) -> frozenset[Target]:
    """The targets that get events. All processes of a backend must agree, so it follows from the settings alone."""
    return configured_targets(settings) if truth_in_postgres(settings) else frozenset()


@dataclass(slots=True)
class Connections:
    """Made by `connect`; `postgres`, `milvus` and `neo4j` are None when they are not configured."""

    settings: Settings
    targets: frozenset[Target]
    postgres: Database | None
    embedding: EmbeddingProvider
    milvus: MilvusConnection | None
    neo4j: Neo4jConnection | None
    embedding_previous: EmbeddingProvider | None = None

    @property
    def database(self) -> Database:
        """PostgreSQL. Raises `SettingsError` when it is not configured."""
        if self.postgres is None:
            raise SettingsError("postgres.dsn or postgres.dsn_file is required")
        return self.postgres

    async def open_truth(self) -> None:
        """Connect to PostgreSQL and check that it is this backend's, of this release; with another store, nothing.

        Raises `TargetUnavailable`, `SchemaError`, `IdentityError`.
        """
        if truth_in_postgres(self.settings):
            await self.database.open()
            await check_schema(self.database)
            await read_identity(self.database)

    def resources(self, **more: object) -> Resources:
        """The resources for plugins, and what the caller adds."""
        return Resources(
            settings=self.settings,
            database=self.postgres,
            embedding=self.embedding,
            embedding_previous=self.embedding_previous,
            milvus=self.milvus,
            neo4j=self.neo4j,
            **more,  # type: ignore[arg-type] # the caller names fields of Resources
        )

    def embeddings(self) -> StoredEmbeddings:
        """Vectors of this backend's provider, stored in the truth."""
        return self._stored(self.embedding, self.settings.embedding)

    def previous_embeddings(self) -> StoredEmbeddings | None:
        """Those of `embedding_previous`; None when the settings name none."""
        provider, settings = self.embedding_previous, self.settings.embedding_previous
        if provider is None or settings is None:
            return None
        return self._stored(provider, settings)

    def _stored(self, provider: EmbeddingProvider, settings: EmbeddingSettings) -> StoredEmbeddings:
        embed = partial(embed_contents, concurrency=settings.concurrency)
        return StoredEmbeddings(
            self.database, provider, embed, batch_size=settings.batch_size, concurrency=settings.concurrency
        )

    def projection(self, target: Target) -> ProjectionTarget:
        """The projection that a worker of this target writes, on a connection of its own, which `work` closes.

        Raises `SettingsError` when it is not configured, or the store has no projections.
        """
        if not truth_in_postgres(self.settings):
            raise SettingsError(
                f"store.plugin is {self.settings.store.plugin}:"
                " only the store postgres has projections and outbox workers"
            )
        if target is Target.MILVUS and self.milvus is not None:
            return MilvusProjection(
                self.database,
                MilvusConnection(self.settings.milvus),
                self.embeddings(),
                self.previous_embeddings(),
            )
        if target is Target.NEO4J and self.neo4j is not None:
            return Neo4jProjection(self.database, Neo4jConnection(self.settings.neo4j))
        if target is Target.LTM_CACHE:
            raise SettingsError("events of ltm_cache are consumed by the service itself")
        raise SettingsError(f"{target.value}.uri is required for a worker of {target.value}")

    async def work(
        self, target: ProjectionTarget, signal: Signal, metrics: Metrics, tracer: Tracer | None = None
    ) -> None:
        """Run an outbox worker until the signal aborts; the target is closed however that ends."""
        try:
            worker = OutboxWorker(self.database, target, self.settings.outbox, metrics=metrics, tracer=tracer)
            await worker.run(signal)
        finally:
            await target.close()

    def probed(self) -> Mapping[str, MilvusConnection | Neo4jConnection]:
        """The configured projections by name, for health checks."""
        named = {Target.MILVUS.value: self.milvus, Target.NEO4J.value: self.neo4j}
        return {name: connection for name, connection in named.items() if connection is not None}

    async def close(self) -> None:
        """Close what is open. Idempotent."""
        for part in (self.milvus, self.neo4j, self.embedding, self.embedding_previous, self.postgres):
            close = getattr(part, "close", None)  # absent parts and providers without connections have none
            if close is None:
                continue
            try:
                await close()
            except Exception as error:  # noqa: BLE001 - the others must be closed too, and drivers raise anything
                log.warning("a connection did not close cleanly: %s", describe(error))


def connect(settings: Settings, *, application_name: str) -> Connections:
    """Build them. Raises `SettingsError` for what can be known to be wrong without asking a server."""
    configured = settings.postgres.dsn is not None or settings.postgres.dsn_file is not None
    if truth_in_postgres(settings) and not configured:
        raise SettingsError("postgres.dsn or postgres.dsn_file is required")
    _import_drivers(settings)
    resources = Resources(settings=settings)
    previous = settings.embedding_previous
    return Connections(
        settings=settings,
        targets=enabled_targets(settings),
        postgres=Database(settings.postgres, application_name=application_name) if configured else None,
        embedding=create_embedding(settings.embedding.plugin, settings.embedding.options, resources),
        milvus=MilvusConnection(settings.milvus) if settings.milvus.enabled else None,
        neo4j=Neo4jConnection(settings.neo4j) if settings.neo4j.enabled else None,
        embedding_previous=create_embedding(previous.plugin, previous.options, resources) if previous else None,
    )


def _import_drivers(settings: Settings) -> None:
    """Import what will be needed now: the drivers take seconds, and nobody is waiting for an answer yet."""
    for name, enabled in (("pymilvus", settings.milvus.enabled), ("neo4j", settings.neo4j.enabled)):
        if enabled:
            try:
                importlib.import_module(name)
            except ModuleNotFoundError:
                raise SettingsError(f"{name} is configured but not installed") from None
