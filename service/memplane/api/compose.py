"""The composition root: from settings to a running service. Everything is put together here and nowhere else.

`ServiceProcess.start()` returns at once; what needs a server is brought up behind it, again and again until it works.
So a service whose database is away starts, says so in `/readyz`, and heals by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from functools import partial

from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp

from memplane.api.admin.models import Status
from memplane.api.admin.routes import AdminPlane
from memplane.api.admin.status import read_status
from memplane.api.app import Parts, create_app
from memplane.api.auth.api_keys import ApiKeys
from memplane.api.auth.identity import Authenticator
from memplane.api.auth.loopback import Loopback
from memplane.api.auth.status_key import StatusKey
from memplane.api.auth.tokens import Tokens
from memplane.api.capabilities import capabilities_of
from memplane.api.connections import Connections, connect, truth_in_postgres
from memplane.api.consolidating import plane_of, scheduled
from memplane.api.exposition import RegistryExposition
from memplane.api.generations import RetiredGenerations
from memplane.api.going_live import GoingLive
from memplane.api.health import PluginTruth, PostgresBeside, PostgresTruth, Probed, ServiceHealth, Truth
from memplane.api.node_plane import MemoryPlane
from memplane.api.purge_metrics import PurgeMetrics
from memplane.api.rebuild_metrics import RebuildMetrics
from memplane.api.recovery_metrics import RecoveryMetrics
from memplane.api.supervise import Run, Supervisor
from memplane.api.upkeep import Upkeep
from memplane.cache.cached_store import CachedBackend
from memplane.cache.listener import CacheListener
from memplane.cache.ltm import LtmCache
from memplane.cache.metrics import CacheMetrics
from memplane.cache.target import CacheTarget
from memplane.contracts import Defaults, StoreBackend
from memplane.errors import MemplaneError, SettingsError
from memplane.outbox.events import ProjectionTarget, Target
from memplane.outbox.metrics import DatabaseMetrics, Metrics
from memplane.plugins.registry import create_search, create_store
from memplane.schema.committed import OnCommit
from memplane.schema.database import Database
from memplane.settings import Settings
from memplane.signal import Signal
from memplane.tracing import Tracer, start_tracer

log = logging.getLogger(__name__)

BRING_UP = "startup"


def make_authenticator(settings: Settings) -> Authenticator:
    """The configured way to tell who calls. Raises `SettingsError`."""
    auth = settings.auth
    if auth.mode == "none":
        return Loopback(bind=settings.service.host, tenant=auth.tenant)
    if auth.mode == "jwt":
        return Tokens(auth.jwt)
    if auth.api_keys_file is None:
        raise SettingsError("auth.mode apiKeys needs auth.api_keys_file (make a key with `memplane keys new`)")
    return ApiKeys(auth.api_keys_file)


class ServiceProcess:
    """The service of one process, and the workers of `worker_targets` beside it (`memplane dev`)."""

    def __init__(
        self, settings: Settings, *, worker_targets: Collection[Target] = (), tracer: Tracer | None = None
    ) -> None:
        self.settings = settings
        self.registry = CollectorRegistry()
        self.supervisor = Supervisor()
        self.connections: Connections = connect(settings, application_name="memplane-service")
        self._tracer = tracer or start_tracer(settings.tracing, "service")
        self._worker_targets = frozenset(worker_targets)
        self._authenticator = make_authenticator(settings)
        self._status_key = StatusKey(settings.auth.status_key_file)
        self._ready = False
        self._truth: Database | None = self.connections.database if truth_in_postgres(settings) else None
        self._metrics = Metrics(self.registry)
        self._counted = self._database_figures()
        self._cache = (
            LtmCache(max_bytes=settings.cache.max_bytes, ttl_seconds=settings.cache.ttl_seconds)
            if Target.LTM_CACHE in self.connections.targets
            else None
        )
        self._store = self._make_store()
        self._search = create_search(
            settings.search.plugin,
            settings.search.options,
            self.connections.resources(cache=self._cache, store=self._store),
        )
        self._health = self._make_health()
        self.app: ASGIApp = create_app(self._parts(), settings.service, settings.auth)

    def _database_figures(self) -> list[DatabaseMetrics | PurgeMetrics | RebuildMetrics | RecoveryMetrics]:
        """What is counted in PostgreSQL: events where it is the truth, recovery tasks wherever it is configured."""
        counted: list[DatabaseMetrics | PurgeMetrics | RebuildMetrics | RecoveryMetrics] = []
        if self._truth is not None:
            counted.append(DatabaseMetrics(self._truth, self.registry))
            counted.append(RebuildMetrics(self._truth, self.registry))
            counted.append(PurgeMetrics(self._truth, self.registry))
        if self.connections.postgres is not None:
            counted.append(RecoveryMetrics(self.connections.postgres, self.registry))
        return counted

    def _make_health(self) -> ServiceHealth:
        probed: dict[str, Probed] = dict(self.connections.probed())
        truth: Truth
        if self._truth is not None:
            truth = PostgresTruth(self._truth)
        else:
            truth = PluginTruth(self._store, self._refusal)
            if self.connections.postgres is not None:
                probed["postgresql"] = PostgresBeside(self.connections.postgres)
        return ServiceHealth(truth, probed, self.supervisor)

    def _make_store(self) -> StoreBackend:
        chosen = self.settings.store
        if self.settings.cache.consistency == "cached" and self._cache is None:
            # What a change of another process invalidates, only PostgreSQL tells.
            raise SettingsError(
                "cache.consistency cached needs store.plugin postgres and cache.max_bytes above 0:"
                " set it to strong, or change those"
            )
        store = create_store(chosen.plugin, chosen.options, self.connections.resources(cache=self._cache))
        if self._cache is None:
            return store
        CacheMetrics(self._cache, self.registry)
        return CachedBackend(store, self._cache) if self.settings.cache.consistency == "cached" else store

    def _parts(self) -> Parts:
        defaults: Defaults = {
            "queryLimit": self.settings.defaults.query_limit,
            "searchLimit": self.settings.defaults.search_limit,
        }
        return Parts(
            nodes=MemoryPlane(self._store, self._search, defaults, self._refusal, self._count_degraded),
            health=self._health,
            admin=AdminPlane(
                self._truth,
                self.connections.targets,
                self._status,
                None if self._truth is None else plane_of(self.connections, self._on_commit),
            ),
            metrics=RegistryExposition(self.registry, self._refresh_metrics),
            authenticator=self._authenticator,
            status_key=self._status_key,
            registry=self.registry,
            capabilities=capabilities_of(self.settings, self._store, self._search),
            tasks=self.connections.postgres,
            tracer=self._tracer,
        )

    async def _refresh_metrics(self) -> None:
        for figures in self._counted:
            await figures.refresh()

    def _refusal(self) -> str | None:
        if self._ready:
            return None
        part = self.supervisor.parts.get(BRING_UP)
        return part.check.detail if part is not None and part.check.detail else "The service is starting"

    def _count_degraded(self, target: str) -> None:
        self._metrics.search_degraded.labels(target).inc()

    async def _status(self) -> Status:
        return await read_status(self._truth, self.settings, self.connections.targets, self._health)

    async def start(self) -> None:
        """Read the credentials' files and begin to bring up the rest. Raises `SettingsError`."""
        await self._authenticator.start()
        self._status_key.load()
        self.supervisor.start(BRING_UP, self._bring_up)

    async def _bring_up(self, signal: Signal) -> None:
        """One attempt; the supervisor repeats it until it ends without an error."""
        await self.connections.open_truth()
        milvus = self.connections.milvus
        if milvus is not None and milvus.lite:
            # Two first connections at once would both start the server behind the file.
            await milvus.open()
        await self._store.start()
        await self._search.start()
        self._ready = True
        log.info("the service is ready")
        if self._truth is not None and not signal.aborted:
            self._start_parts(self._truth)

    @property
    def _on_commit(self) -> OnCommit | None:
        return None if self._cache is None else self._cache.on_commit

    def _start_parts(self, database: Database) -> None:
        if self._cache is not None:
            self.supervisor.start("cache_listener", CacheListener(database, self._cache).run)
            self.supervisor.start("ltm_cache", self._worker(lambda: CacheTarget(database)))
        upkeep = Upkeep(
            database,
            self.settings,
            targets=self.connections.targets,
            on_commit=self._on_commit,
            more=scheduled(self.connections, self._on_commit),
        )
        self.supervisor.start("upkeep", upkeep.run)
        if self.connections.milvus is not None:
            self.supervisor.start("generations", RetiredGenerations(database, self.connections.milvus).run)
        for target in sorted(self._worker_targets & self.connections.targets):
            self.supervisor.start(f"{target.value}_worker", self._worker(partial(self.connections.projection, target)))
            going_live = GoingLive(self.connections, target)
            if going_live.needed:
                self.supervisor.start(f"{target.value}_going_live", going_live.run)

    def _worker(self, projection: Callable[[], ProjectionTarget]) -> Run:
        """Runs an outbox worker; each run has a projection of its own, because it is closed at the end."""

        async def run(signal: Signal) -> None:
            await self.connections.work(projection(), signal, self._metrics, self._tracer)

        return run

    @property
    def refusal(self) -> MemplaneError | None:
        """Why node calls will never be served, once that is known."""
        part = self.supervisor.parts.get(BRING_UP)
        return None if part is None else part.refusal

    async def ready(self) -> None:
        """Wait until node calls are served, or raise why they never will be."""
        await self.supervisor.parts[BRING_UP].finished.wait()
        if self.refusal is not None:
            raise self.refusal

    async def close(self) -> None:
        """End the parts, then close what they used. Idempotent."""
        await self.supervisor.stop(self.settings.outbox.drain_seconds)
        self._ready = False
        await self._search.close()
        await self._store.close()
        await self._authenticator.close()
        await self.connections.close()
        if self._tracer is not None:
            await asyncio.to_thread(self._tracer.close)
