"""The entry point of the store plugin `postgres`."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from memplane.cache.ltm import LtmCache
from memplane.outbox.events import Target
from memplane.plugins.postgres.backend import PostgresBackend
from memplane.plugins.registry import Resources
from memplane.schema.database import Database
from memplane.settings import CacheSettings, MilvusSettings, Neo4jSettings, PostgresSettings, StoreSettings


class PostgresOptions(BaseModel):
    """`store.options` of the plugin `postgres`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    postgres: PostgresSettings | None = Field(
        None, description="connection of the store's own pool; by default the process's pool is shared"
    )
    targets: tuple[Target, ...] | None = Field(
        None, description="projections to announce changes to; by default those that the process is configured with"
    )
    require_expected_version: bool | None = Field(
        None, description="UPDATE and DELETE must name the version they expect; by default as in the store settings"
    )


class PostgresPlugin:
    """Builds the backend from options and from what the process shares."""

    settings_model: type[BaseModel] = PostgresOptions

    def create(self, settings: PostgresOptions, resources: Resources) -> PostgresBackend:
        """A backend that is not started yet. Raises `SettingsError` when there is no database to use."""
        own = settings.postgres is not None
        database = (
            Database(settings.postgres) if settings.postgres is not None else resources.require("database", "postgres")
        )
        store = getattr(resources.settings, "store", None)
        required = settings.require_expected_version
        if required is None:
            required = isinstance(store, StoreSettings) and store.require_expected_version
        embedding = resources.embedding
        return PostgresBackend(
            database,
            targets=configured_targets(resources.settings) if settings.targets is None else settings.targets,
            require_expected_version=required,
            embedding=None if embedding is None else (embedding.model, embedding.revision),
            on_commit=resources.cache.on_commit if isinstance(resources.cache, LtmCache) else None,
            owns_database=own,
        )


def configured_targets(settings: BaseModel | None) -> frozenset[Target]:
    """The projections that a process's root settings name: those with an address, and the cache unless it is off."""
    milvus = getattr(settings, "milvus", None)
    neo4j = getattr(settings, "neo4j", None)
    cache = getattr(settings, "cache", None)
    targets = {
        Target.MILVUS: isinstance(milvus, MilvusSettings) and milvus.enabled,
        Target.NEO4J: isinstance(neo4j, Neo4jSettings) and neo4j.enabled,
        Target.LTM_CACHE: isinstance(cache, CacheSettings) and cache.max_bytes > 0,
    }
    return frozenset(target for target, enabled in targets.items() if enabled)


plugin = PostgresPlugin()
