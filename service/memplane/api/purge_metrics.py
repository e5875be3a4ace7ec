"""Tombstones, and what purge and consolidation have done, in figures that are counted in PostgreSQL."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Final

import asyncpg
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.registry import Collector

from memplane.consolidation.apply import ACTIVITY as CONSOLIDATED
from memplane.errors import TargetUnavailable
from memplane.purge.tombstones import ACTIVITY as PURGED
from memplane.schema.database import CONNECT_ERRORS, Database
from memplane.schema.totals import read_totals

SNAPSHOT_SECONDS: Final = 10.0
KINDS: Final = ("tombstones", "edges", "embeddings", "runs", "supersedes")
RULES: Final = ("exact", "near", "decay", "expiry", "policy")

_TOMBSTONES: Final = "SELECT count(*) FROM {schema}.long_term_memory WHERE deleted_at IS NOT NULL"
_UNKNOWN: tuple[type[BaseException], ...] = (TargetUnavailable, asyncpg.PostgresError, *CONNECT_ERRORS)
"""Away, or a schema from before these tables."""


class PurgeMetrics(Collector):
    """`memory_tombstones`, `memory_purged_total{kind}` and `memory_consolidated_total{rule}`.

    Await `refresh()` before the registry is rendered. While the database is away these metrics are absent.
    """

    def __init__(
        self, database: Database, registry: CollectorRegistry, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._database, self._clock = database, clock
        self._taken_at: float | None = None
        self._tombstones: int | None = None
        self._totals: dict[tuple[str, str], int] = {}
        self._refreshing = asyncio.Lock()
        registry.register(self)

    async def refresh(self) -> None:
        """Count again if the last count is too old. Never raises for a database that is away."""
        async with self._refreshing:
            if self._taken_at is not None and self._clock() - self._taken_at < SNAPSHOT_SECONDS:
                return
            try:
                async with self._database.acquire() as connection:
                    self._tombstones = await connection.fetchval(self._database.sql(_TOMBSTONES))
                    self._totals = await read_totals(connection, self._database)
            except _UNKNOWN:
                self._tombstones = None
            self._taken_at = self._clock()

    def collect(self) -> Iterator[Metric]:
        if self._tombstones is None:
            return
        yield GaugeMetricFamily("memory_tombstones", "Deleted memories that are not yet purged", self._tombstones)
        purged = CounterMetricFamily("memory_purged_total", "Rows removed by purge", labels=["kind"])
        for kind in KINDS:
            purged.add_metric([kind], self._totals.get((PURGED, kind), 0))
        yield purged
        done = CounterMetricFamily(
            "memory_consolidated_total", "Memories that consolidation merged away, wrote or expired", labels=["rule"]
        )
        for rule in RULES:
            done.add_metric([rule], self._totals.get((CONSOLIDATED, rule), 0))
        yield done
