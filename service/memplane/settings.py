"""Typed settings of every process. Source: design sections 4 to 8.

One tree of models validates the environment (`MEMPLANE_` and `__` between levels: `MEMPLANE_POSTGRES__DSN`), a YAML file
(`MEMPLANE_CONFIG_FILE`) and, where they overlap, Helm values and the `MemoryBackend` resource. Unknown fields are refused.
A secret may be given as a file: `dsn_file` instead of `dsn`, so that mounted Secrets can be re-read after a rotation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr


class Section(BaseModel):
    """A group of settings: frozen, unknown fields refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PostgresSettings(Section):
    """The truth. Queries name the schema explicitly, so a transaction-pooling proxy may stand in between."""

    dsn: SecretStr | None = Field(None, description="postgresql:// URL of the primary")
    dsn_file: Path | None = Field(
        None, description="file that holds the URL; read again after an authentication failure"
    )
    direct_dsn: SecretStr | None = Field(None, description="URL for LISTEN when `dsn` goes through a pooler")
    schema_name: str = Field("memplane", pattern=r"^[a-z_][a-z0-9_]{0,62}$", description="schema that holds the tables")
    pool_min: int = Field(1, ge=0, le=1000, description="connections kept open")
    pool_max: int = Field(10, ge=1, le=1000, description="connections at most")
    connect_timeout: float = Field(10, gt=0, le=300, description="seconds to wait for a connection")
    statement_timeout: float = Field(30, gt=0, le=3600, description="seconds one statement may take")
    prepared_statements: bool = Field(True, description="false behind a transaction-pooling proxy")


class MilvusSettings(Section):
    uri: str | None = Field(None, description="http(s)://host:19530, or a file path ending in .db for Milvus Lite")
    token: SecretStr | None = Field(None, description="user:password or API key")
    token_file: Path | None = None
    database: str = Field("default", min_length=1)
    timeout: float = Field(10, gt=0, le=300, description="seconds one call may take")


class Neo4jSettings(Section):
    uri: str | None = Field(None, description="bolt:// or neo4j:// URL")
    user: str = "neo4j"
    password: SecretStr | None = None
    password_file: Path | None = None
    database: str = Field("neo4j", min_length=1)
    timeout: float = Field(10, gt=0, le=300, description="seconds one call may take")


class EmbeddingSettings(Section):
    plugin: str = Field("hashing", description="name of an embedding plugin")
    options: dict[str, object] = Field(default_factory=dict, description="the plugin's own document")
    batch_size: int = Field(64, ge=1, le=2048, description="texts per provider call")


class OutboxSettings(Section):
    """Claims, leases and retries of the outbox workers (design section 6)."""

    batch_size: int = Field(200, ge=1, le=5000, description="events per claim")
    concurrency: int = Field(2, ge=1, le=64, description="batches in flight per worker process")
    lease_seconds: float = Field(60, gt=0, le=3600, description="how long a claim is valid without renewal")
    renew_seconds: float = Field(20, gt=0, le=1200, description="how often a lease is renewed")
    call_timeout: float = Field(30, gt=0, le=1200, description="seconds a target call may take; less than the lease")
    retry_base_seconds: float = Field(1, gt=0, le=60, description="first delay; doubles with each attempt")
    retry_max_seconds: float = Field(300, gt=0, le=86400, description="longest delay")
    retry_jitter: float = Field(0.5, ge=0, le=1, description="delays vary by this fraction either way")
    max_attempts: int = Field(10, ge=1, le=1000, description="attempts before an event is dead")
    poll_seconds: float = Field(1, gt=0, le=60, description="idle polling interval, jittered; the truth behind NOTIFY")
    breaker_seconds: float = Field(5, gt=0, le=600, description="pause before an unhealthy target is probed again")
    drain_seconds: float = Field(25, gt=0, le=600, description="time to finish the batches in flight after SIGTERM")
    retention_seconds: float = Field(86400, ge=0, description="how long processed events are kept")
    mode: Literal["Live", "Shadow"] = Field("Live", description="Shadow computes and counts, and writes nothing")


class StoreSettings(Section):
    plugin: str = Field("postgres", description="name of a store plugin")
    options: dict[str, object] = Field(default_factory=dict, description="the plugin's own document")
    require_expected_version: bool = Field(False, description="UPDATE and DELETE must name the version they expect")


class SearchSettings(Section):
    plugin: str = Field("hybrid", description="name of a search plugin")
    options: dict[str, object] = Field(default_factory=dict, description="the plugin's own document")


class CacheSettings(Section):
    """The LTM cache of this process (design section 8)."""

    max_bytes: int = Field(64 * 2**20, ge=0, description="bodies kept at most, as JSON bytes; 0 turns the cache off")
    ttl_seconds: float = Field(60, gt=0, le=86400, description="age at which a body is reloaded")
    consistency: Literal["strong", "cached"] = Field(
        "strong", description="cached also serves GET by id from the cache"
    )


class DefaultsSettings(Section):
    query_limit: int = Field(100, ge=1, le=10_000)
    search_limit: int = Field(10, ge=1, le=10_000)
