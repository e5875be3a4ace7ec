"""Recovery tasks in figures: how many at each stage, and how long those have waited that wait for somebody."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

import asyncpg
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from memplane.errors import TargetUnavailable
from memplane.schema.database import CONNECT_ERRORS, Database

SNAPSHOT_SECONDS = 10.0
STAGES = (
    "queued",
    "prepared",
    "paused",
    "approved",
    "reserved",
    "uncertain",
    "timed-out",
    "needs-review",
    "failed",
    "rejected",
    "compensated",
    "completed",
)
WAITING = ("paused", "uncertain", "timed-out", "needs-review")
"""Stages at which a task waits for a person or for the outside world."""

_COUNTS = """
SELECT stage, count(*) AS jobs, EXTRACT(EPOCH FROM now() - min(changed_at))::float8 AS oldest
FROM {schema}.recovery_job GROUP BY stage
"""
_UNKNOWN: tuple[type[BaseException], ...] = (TargetUnavailable, asyncpg.PostgresError, *CONNECT_ERRORS)
"""Away, or a schema from before these tables."""


class RecoveryMetrics(Collector):
    """`memplane_recovery_jobs{stage}` and `memplane_recovery_oldest_seconds{stage}`.

    Await `refresh()` before the registry is rendered. While the database is away these metrics are absent.
    """

    def __init__(
        self, database: Database, registry: CollectorRegistry, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._database, self._clock = database, clock
        self._taken_at: float | None = None
        self._figures: dict[str, tuple[int, float]] | None = None
        self._refreshing = asyncio.Lock()
        registry.register(self)

    async def refresh(self) -> None:
        """Count again if the last count is too old. Never raises for a database that is away."""
        async with self._refreshing:
            if self._taken_at is not None and self._clock() - self._taken_at < SNAPSHOT_SECONDS:
                return
            try:
                async with self._database.acquire() as connection:
                    rows = await connection.fetch(self._database.sql(_COUNTS))
                self._figures = {row["stage"]: (row["jobs"], row["oldest"]) for row in rows}
            except _UNKNOWN:
                self._figures = None
            self._taken_at = self._clock()

    def collect(self) -> Iterator[Metric]:
        if self._figures is None:
            return
        jobs = GaugeMetricFamily("memplane_recovery_jobs", "Recovery tasks at a stage", labels=["stage"])
        for stage in STAGES:
            jobs.add_metric([stage], self._figures.get(stage, (0, 0.0))[0])
        yield jobs
        oldest = GaugeMetricFamily(
            "memplane_recovery_oldest_seconds", "How long the oldest task has been at this stage", labels=["stage"]
        )
        for stage in WAITING:
            oldest.add_metric([stage], self._figures.get(stage, (0, 0.0))[1])
        yield oldest
