"""Typed settings of every process. Source: design sections 4 to 8.

One tree of models validates the environment (`MEMPLANE_` and `__` between levels: `MEMPLANE_POSTGRES__DSN`), a YAML
file (`MEMPLANE_CONFIG_FILE`) and, where they overlap, Helm values and the `MemoryBackend` resource. Unknown fields are
refused. A secret may be given as a file (`dsn_file` instead of `dsn`), so that mounted Secrets can be re-read after a
rotation.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict
from pydantic_settings import SettingsError as UnreadableEnvironment

from memplane.errors import SettingsError

ENV_PREFIX = "MEMPLANE_"
CONFIG_FILE_VARIABLE = "MEMPLANE_CONFIG_FILE"


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
    steady_reads: int = Field(
        4, ge=0, le=100, description="further connections at most, for reads by id; none without prepared statements"
    )
    connect_timeout: float = Field(10, gt=0, le=300, description="seconds to wait for a connection")
    statement_timeout: float = Field(30, gt=0, le=3600, description="seconds one statement may take")
    prepared_statements: bool = Field(True, description="false behind a transaction-pooling proxy")


class MilvusSettings(Section):
    uri: str | None = Field(None, description="http(s)://host:19530, or a file path ending in .db for Milvus Lite")
    uri_file: Path | None = Field(None, description="file that holds the URL, user:password@ in it if need be")
    token: SecretStr | None = Field(None, description="user:password or API key")
    token_file: Path | None = None
    database: str = Field("default", min_length=1)
    timeout: float = Field(10, gt=0, le=300, description="seconds one call may take")

    @property
    def enabled(self) -> bool:
        """Whether this target is on: it has an address."""
        return self.uri is not None or self.uri_file is not None


class Neo4jSettings(Section):
    uri: str | None = Field(None, description="bolt:// or neo4j:// URL")
    uri_file: Path | None = Field(None, description="file that holds the URL, user:password@ in it if need be")
    user: str = "neo4j"
    password: SecretStr | None = None
    password_file: Path | None = None
    database: str = Field("neo4j", min_length=1)
    timeout: float = Field(10, gt=0, le=300, description="seconds one call may take")

    @property
    def enabled(self) -> bool:
        """Whether this target is on: it has an address."""
        return self.uri is not None or self.uri_file is not None


class EmbeddingSettings(Section):
    plugin: str = Field("hashing", description="name of an embedding plugin")
    options: dict[str, object] = Field(default_factory=dict, description="the plugin's own document")
    batch_size: int = Field(64, ge=1, le=2048, description="texts per provider call")
    concurrency: int = Field(4, ge=1, le=64, description="provider calls in flight per batch of events")


class OutboxSettings(Section):
    """Claims, leases and retries of the outbox workers (design section 6)."""

    batch_size: int = Field(1000, ge=1, le=5000, description="events per claim")
    concurrency: int = Field(4, ge=1, le=64, description="batches in flight per worker process")
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

    @property
    def retry_span_seconds(self) -> float:
        """The longest time from an event's first attempt to its last, each attempt as long as a lease."""
        longest = self.retry_base_seconds * (1 + self.retry_jitter)
        delays = (min(self.retry_max_seconds, longest * 2.0 ** min(n, 60)) for n in range(self.max_attempts - 1))
        return sum(delays) + self.max_attempts * self.lease_seconds


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


class JwtSettings(Section):
    """Tokens of an OpenID Connect issuer or anything else that signs with RS* or ES*."""

    issuer: str | None = Field(None, description="required value of `iss`")
    audience: str | None = Field(None, description="required value of `aud`")
    jwks_url: str | None = Field(None, description="https:// URL of the key set (http:// only on loopback)")
    jwks_file: Path | None = Field(None, description="file that holds the key set, instead of jwks_url")
    jwks_cache_seconds: float = Field(300, gt=0, le=86400, description="age at which the key set is read again")
    algorithms: tuple[Literal["RS256", "RS384", "RS512", "ES256", "ES384", "ES512"], ...] = Field(
        ("RS256", "ES256"), min_length=1, description="signature algorithms that are accepted"
    )
    leeway_seconds: float = Field(30, ge=0, le=300, description="difference of clocks that is tolerated")
    tenant_claim: str = Field("tenant", min_length=1, description="claim that holds the tenant")
    user_claim: str = Field("sub", min_length=1, description="claim that holds the one allowed user, taken literally")
    users_claim: str | None = Field(
        None,
        min_length=1,
        description='claim with a list of allowed users or "*"; when a token has it, user_claim is not read',
    )
    roles_claim: str = Field("roles", min_length=1, description="claim with the roles: a list, or one text with spaces")


class AuthSettings(Section):
    """Who may call (design section 4). Files are read again when they change; nothing needs a restart."""

    mode: Literal["apiKeys", "jwt", "none"] = Field(
        "apiKeys", description="`none` trusts every caller and therefore only listens on loopback"
    )
    api_keys_file: Path | None = Field(None, description="hashed API keys, written by `memplane keys new`")
    status_key_file: Path | None = Field(
        None, description="a key (or sha256:<hex of it>) that may read /v1/admin/status and nothing else, in every mode"
    )
    jwt: JwtSettings = JwtSettings()
    metrics: Literal["open", "key"] = Field(
        "open", description="`key`: /metrics wants the status key or a credential with the role platform"
    )
    tenant: str = Field("default", min_length=1, max_length=200, description="tenant of every caller in mode none")


class ServiceSettings(Section):
    """The HTTP service."""

    host: str = Field("127.0.0.1", min_length=1, description="address to listen on")
    port: int = Field(8080, ge=0, le=65535, description="0 takes a free port")
    max_body_bytes: int = Field(16 * 2**20, ge=1024, le=256 * 2**20, description="largest request body")
    max_header_bytes: int = Field(
        32 * 2**10,
        ge=4096,
        le=2**20,
        description="a request head beyond this is refused once it takes more than one read",
    )
    request_timeout: float = Field(30, gt=0, le=3600, description="seconds for one request, its body included")
    max_in_flight: int = Field(512, ge=1, le=100_000, description="node calls at once; more are answered 503")
    keep_alive: float = Field(65, gt=0, le=3600, description="seconds an idle connection is kept")
    head_timeout: float = Field(15, gt=0, le=600, description="seconds a client may take to send a request's head")
    shutdown_seconds: float = Field(25, gt=0, le=600, description="time to finish requests in flight after SIGTERM")
    access_log: bool = Field(False, description="log every request; failed and slow ones are always logged")
    slow_seconds: float = Field(1, gt=0, le=3600, description="a request that takes longer is logged")
    docs: bool = Field(True, description="serve /docs and /openapi.json")
    invoke: bool = Field(False, description="serve POST /ditto/invoke, so that other runtimes can call the nodes")


class WorkerSettings(Section):
    """The process `memplane worker TARGET`: where it serves /metrics and /livez."""

    host: str = Field("127.0.0.1", min_length=1, description="address to listen on")
    port: int = Field(9464, ge=0, le=65535, description="0 takes a free port")


class RetrievalSettings(Section):
    """The process `memplane retrieval`, which searches for services whose search plugin is `retrieval`."""

    host: str = Field("127.0.0.1", min_length=1, description="address to listen on")
    port: int = Field(8090, ge=0, le=65535, description="0 takes a free port")
    token: SecretStr | None = Field(None, description="who has it can search in every scope")
    token_file: Path | None = Field(None, description="file that holds the token; read again for every call")
    max_body_bytes: int = Field(16 * 2**20, ge=1024, le=256 * 2**20, description="largest request and answer")
    search: SearchSettings = Field(SearchSettings(), description="the search that runs in this process")


class UpkeepSettings(Section):
    """What one instance of the service does at a time, for all of them."""

    expiry_seconds: float = Field(5, gt=0, le=3600, description="how often expired memories are tombstoned")
    prune_seconds: float = Field(60, gt=0, le=86400, description="how often processed events are pruned")
    batch_size: int = Field(1000, ge=1, le=10_000, description="rows per transaction")


class PurgeSettings(Section):
    """When what is over is removed for good (seed `002` section 10.3): by `memplane purge` or the service itself."""

    retention_seconds: float = Field(
        30 * 86400,
        gt=0,
        description="how long a tombstone is kept at least; more than the outbox's retry span + full_interval_seconds",
    )
    full_interval_seconds: float = Field(7 * 86400, gt=0, description="longest time between two full reconciliations")
    runs_retention_seconds: float = Field(90 * 86400, ge=0, description="how long ended reconciliation runs are kept")
    audit_retention_seconds: float = Field(
        365 * 86400, ge=0, description="how long it is kept which memory superseded which, once both are purged"
    )
    batch_size: int = Field(500, ge=1, le=5000, description="rows per transaction")
    interval_seconds: float = Field(0, ge=0, description="how often the service purges by itself; 0: never")


Rule = Literal["exact", "near", "decay", "expiry", "policy"]
"""What consolidation may do; each is off until it is named."""


class ConsolidationSettings(Section):
    """Merging, decay and expiry (seed `002` section 7): by `memplane consolidate`, or by the service itself."""

    rules: tuple[Rule, ...] = Field((), description="what is done; nothing by default")
    near_threshold: float = Field(
        0.97, gt=0, le=1, description="cosine of two stored embeddings from which they count as near duplicates"
    )
    half_life_seconds: float = Field(
        30 * 86400, gt=0, description="time in which the importance of an unchanged memory halves"
    )
    minimum_decay: float = Field(0.01, gt=0, le=1, description="an importance is written when it sinks by so much")
    window: int = Field(5000, ge=2, le=20_000, description="memories of one scope that are looked at together")
    batch_size: int = Field(200, ge=2, le=5000, description="memories changed in one transaction")
    attempts: int = Field(5, ge=1, le=100, description="plans made for a window before conflicts end it")
    policy: str = Field("keep", description="name of a merge policy (entry points `memplane.consolidation`)")
    policy_options: dict[str, object] = Field(default_factory=dict, description="the policy's own document")
    interval_seconds: float = Field(0, ge=0, description="how often the service consolidates by itself; 0: never")


class AdoptionColumns(Section):
    """Which column of an existing table holds which field. What is not named is the column of the field's own name."""

    tenant: str | None = Field(None, min_length=1, max_length=63, description="text; else `adoption.tenant` for all")
    user_id: str | None = Field(None, min_length=1, max_length=63, description="text, integer or UUID")
    key: str | None = Field(None, min_length=1, max_length=63, description="text, integer or UUID; unique in the table")
    content: str | None = Field(None, min_length=1, max_length=63, description="text")
    metadata: str | None = Field(None, min_length=1, max_length=63, description="json or jsonb objects")
    importance: str | None = Field(None, min_length=1, max_length=63, description="a number")
    category: str | None = Field(None, min_length=1, max_length=63, description="text")
    tags: str | None = Field(
        None, min_length=1, max_length=63, description="array of texts, JSON array, or a list in a text"
    )
    slot_hint: str | None = Field(None, min_length=1, max_length=63, description="text")
    expires_at: str | None = Field(None, min_length=1, max_length=63, description="timestamp or date")
    created_at: str | None = Field(None, min_length=1, max_length=63, description="timestamp or date")
    updated_at: str | None = Field(None, min_length=1, max_length=63, description="timestamp or date")
    deleted_at: str | None = Field(None, min_length=1, max_length=63, description="timestamp or date of a soft delete")
    deleted: str | None = Field(
        None, min_length=1, max_length=63, description="flag of a soft delete: boolean, or 0 and 1"
    )


class AdoptionSettings(Section):
    """How `memplane migrate --adopt` takes over a `long_term_memory` that another application made and still writes."""

    columns: AdoptionColumns = AdoptionColumns()
    tenant: str = Field("default", min_length=1, max_length=200, description="tenant of all rows without such a column")
    time_zone: str = Field(
        "UTC", pattern=r"^[A-Za-z0-9_+\-/]{1,64}$", description="of timestamps without a zone, and of dates"
    )
    importance_scale: float = Field(1, gt=0, description="a mapped importance is divided by it to lie in 0..1")
    tags_separator: str = Field(",", min_length=1, max_length=8, description="between the tags of a mapped text")
    batch_size: int = Field(500, ge=1, le=5000, description="rows per transaction")
    rows_per_second: float = Field(0, ge=0, description="the backfill goes no faster; 0: as fast as it can")
    lock_timeout_seconds: float = Field(
        0.5, gt=0, le=60, description="longest wait for a lock, behind which writers queue"
    )
    lock_attempts: int = Field(120, ge=1, le=100_000, description="tries to get the lock, a second or so apart")
    settle_seconds: float = Field(
        1, gt=0, le=60, description="how often the service hashes what the old application wrote"
    )
    quiet_seconds: float = Field(60, ge=0, description="--finish-adoption wants no old write for so long")


class RebuildSettings(Section):
    """`memplane rebuild TARGET`, and what becomes of the collection that a rebuild has replaced."""

    page_size: int = Field(1000, ge=1, le=5000, description="memories per page")
    concurrency: int = Field(2, ge=1, le=16, description="pages in flight; memory grows with it")
    rate: float = Field(0, ge=0, description="memories per second at most; 0: as fast as it can")
    grace_seconds: float = Field(
        600, ge=0, le=30 * 86400, description="how long a replaced collection is kept before the service drops it"
    )
    rounds: int = Field(10, ge=1, le=100, description="comparisons at most until nothing differs")


class ReconcileSettings(Section):
    """How a projection is compared with the truth (seed `002` section 10): `memplane reconcile`."""

    rows_per_second: float = Field(0, ge=0, description="memories compared a second at most; 0: as fast as it goes")
    vectors: bool = Field(True, description="also compare the vectors in Milvus with the stored embeddings")
    resume_seconds: float = Field(
        6 * 3600,
        ge=0,
        le=7 * 86400,
        description="a run that broke off is taken up again if it began less than this ago; 0: never",
    )
    orphan_fraction: float = Field(
        0.1, ge=0, le=1, description="a run that finds more orphans than this share of the target's objects stops"
    )
    max_changes: int = Field(
        1_000_000,
        ge=1,
        le=100_000_000,
        description="changed memories (8 bytes each) beyond which an incremental run becomes a full one",
    )


class LogSettings(Section):
    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    format: Literal["json", "text"] = Field("json", description="`json`: one object a line")


class TracingSettings(Section):
    """OpenTelemetry traces (extra `otel`); off while there is no endpoint."""

    endpoint: str | None = Field(
        None, pattern=r"^https?://", description="OTLP/HTTP URL of a collector: http://collector:4318/v1/traces"
    )
    sample_ratio: float = Field(1, ge=0, le=1, description="share of the traces that begin here; callers decide theirs")
    timeout: float = Field(5, gt=0, le=60, description="seconds the collector may take")


class Settings(BaseSettings):
    """Everything a memplane process can be told. `Settings()` is the defaults alone; see `load_settings`."""

    model_config = SettingsConfigDict(
        extra="forbid", frozen=True, env_prefix=ENV_PREFIX, env_nested_delimiter="__", validate_default=True
    )

    postgres: PostgresSettings = PostgresSettings()
    milvus: MilvusSettings = MilvusSettings()
    neo4j: Neo4jSettings = Neo4jSettings()
    embedding: EmbeddingSettings = EmbeddingSettings()
    embedding_previous: EmbeddingSettings | None = Field(
        None,
        description="the model of the vectors in use, while `embedding` names another one that "
        "`memplane rebuild milvus` is to bring in; not needed any more after the rebuild",
    )
    outbox: OutboxSettings = OutboxSettings()
    store: StoreSettings = StoreSettings()
    search: SearchSettings = SearchSettings()
    cache: CacheSettings = CacheSettings()
    defaults: DefaultsSettings = DefaultsSettings()
    auth: AuthSettings = AuthSettings()
    service: ServiceSettings = ServiceSettings()
    worker: WorkerSettings = WorkerSettings()
    retrieval: RetrievalSettings = RetrievalSettings()
    upkeep: UpkeepSettings = UpkeepSettings()
    rebuild: RebuildSettings = RebuildSettings()
    purge: PurgeSettings = PurgeSettings()
    consolidation: ConsolidationSettings = ConsolidationSettings()
    adoption: AdoptionSettings = AdoptionSettings()
    reconcile: ReconcileSettings = ReconcileSettings()
    log: LogSettings = LogSettings()
    tracing: TracingSettings = TracingSettings()

    @model_validator(mode="after")
    def _retention_covers_every_way_back(self) -> Self:
        """A tombstone must outlive every retry and the next full reconciliation (seed `002` section 5.1)."""
        needed = self.outbox.retry_span_seconds + self.purge.full_interval_seconds
        if self.purge.retention_seconds <= needed:
            raise ValueError(
                "purge.retention_seconds must exceed the outbox's retry span plus purge.full_interval_seconds, "
                f"together {needed:.0f} seconds"
            )
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what the caller passes: the environment is read in one place, `load_settings`."""
        return (init_settings,)


def load_settings(config: Path | None = None, overrides: Mapping[str, object] | None = None) -> Settings:
    """The settings of this process: defaults, then the YAML file, then the environment, then `overrides`.

    The file is `config`, else the one named by MEMPLANE_CONFIG_FILE, else none. The environment names a field by its
    path: MEMPLANE_POSTGRES__POOL_MAX is `postgres.pool_max`. Raises `SettingsError` that names every wrong field by
    its path and never shows a value.
    """
    path = config or (Path(os.environ[CONFIG_FILE_VARIABLE]) if os.environ.get(CONFIG_FILE_VARIABLE) else None)
    merged: dict[str, object] = _read_file(path) if path is not None else {}
    merged = _merge(merged, _read_environment())
    merged = _merge(merged, overrides or {})
    try:
        return Settings(**merged)  # type: ignore[arg-type] # validated right here
    except ValidationError as error:
        raise SettingsError(_explain(error)) from None


def _read_file(path: Path) -> dict[str, object]:
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"the settings file {path} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise SettingsError(f"the settings file {path} is not valid YAML") from None
    if document is None:
        return {}
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        raise SettingsError(f"the settings file {path} must hold a mapping of sections")
    return document


def _read_environment() -> dict[str, object]:
    known = set(Settings.model_fields)
    for name in os.environ:
        if not name.upper().startswith(ENV_PREFIX) or "__" not in name:
            continue
        section = name[len(ENV_PREFIX) :].split("__", 1)[0].lower()
        if section not in known:
            raise SettingsError(f"{name}: there is no section {section!r}; sections are {', '.join(sorted(known))}")
    try:
        return dict(EnvSettingsSource(Settings)())
    except UnreadableEnvironment as error:
        raise SettingsError(f"the environment cannot be read: {_without_cause(error)}") from None


def _without_cause(error: UnreadableEnvironment) -> str:
    """pydantic-settings names the field and the source; its cause would show the value."""
    return str(error).split("\n", 1)[0]


def _merge(base: Mapping[str, object], over: Mapping[str, object]) -> dict[str, object]:
    merged = dict(base)
    for key, value in over.items():
        current = merged.get(key)
        merged[key] = _merge(current, value) if isinstance(current, Mapping) and isinstance(value, Mapping) else value
    return merged


def _explain(error: ValidationError) -> str:
    """One line per wrong field: its path and the rule. Never the value: it may be a secret."""
    return "; ".join(_explain_one(one["loc"], one["type"], one["msg"]) for one in error.errors(include_input=False))


def _explain_one(location: tuple[int | str, ...], kind: str, message: str) -> str:
    path = ".".join(str(part) for part in location)
    if not location:
        return message.removeprefix("Value error, ")
    if kind != "extra_forbidden":
        return f"{path}: {message}"
    model: type[BaseModel] | None = Settings
    for part in location[:-1]:
        annotation = model.model_fields[str(part)].annotation if model and str(part) in model.model_fields else None
        model = annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
    known = f"; known fields are {', '.join(sorted(model.model_fields))}" if model else ""
    return f"{path}: unknown field{known}"
