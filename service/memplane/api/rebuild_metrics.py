"""Rebuilds in figures: how far the unfinished one of each target is, whether somebody works on it, and generations."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from memplane.outbox.patience import DATABASE_ERRORS
from memplane.schema.database import Database

SNAPSHOT_SECONDS = 10.0

_REBUILDS = """
SELECT target, stage, done, total, COALESCE(held_until > statement_timestamp(), FALSE) AS held
FROM {schema}.rebuild_run WHERE state = 'unfinished'
"""

_GENERATIONS = """
SELECT target, state, count(*) AS generations FROM {schema}.projection_generation
WHERE state <> 'dropped' GROUP BY target, state
"""


@dataclass(frozen=True, slots=True)
class _Rebuild:
    target: str
    stage: str
    done: int
    total: int
    held: bool


class RebuildMetrics(Collector):
    """`memory_rebuild_…{target,stage}` of unfinished rebuilds, and `memory_projection_generations{target,state}`.

    Await `refresh()` before the registry is rendered. While the database is away these metrics are absent.
    """

    def __init__(
        self, database: Database, registry: CollectorRegistry, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._database, self._clock = database, clock
        self._taken_at: float | None = None
        self._rebuilds: list[_Rebuild] | None = None
        self._generations: dict[tuple[str, str], int] = {}
        self._refreshing = asyncio.Lock()
        registry.register(self)

    async def refresh(self) -> None:
        """Read the record again if the last look is too old. Never raises for a database that is away."""
        async with self._refreshing:
            if self._taken_at is not None and self._clock() - self._taken_at < SNAPSHOT_SECONDS:
                return
            try:
                await self._read()
            except DATABASE_ERRORS:
                self._rebuilds = None
            self._taken_at = self._clock()

    async def _read(self) -> None:
        async with self._database.acquire() as connection:
            rebuilds = await connection.fetch(self._database.sql(_REBUILDS))
            generations = await connection.fetch(self._database.sql(_GENERATIONS))
        self._rebuilds = [
            _Rebuild(row["target"], row["stage"], row["done"], row["total"], row["held"]) for row in rebuilds
        ]
        self._generations = {(row["target"], row["state"]): row["generations"] for row in generations}

    def collect(self) -> Iterator[Metric]:
        if self._rebuilds is None:
            return
        labels = ["target", "stage"]
        running = GaugeMetricFamily(
            "memory_rebuild_running", "An unfinished rebuild: 1 while a process works on it, else 0", labels=labels
        )
        done = GaugeMetricFamily("memory_rebuild_done", "Memories that its stage has worked off", labels=labels)
        total = GaugeMetricFamily("memory_rebuild_memories", "Memories of its stage, about", labels=labels)
        for one in self._rebuilds:
            running.add_metric([one.target, one.stage], float(one.held))
            done.add_metric([one.target, one.stage], one.done)
            total.add_metric([one.target, one.stage], one.total)
        yield from (running, done, total)
        generations = GaugeMetricFamily(
            "memory_projection_generations", "Generations that are not dropped", labels=["target", "state"]
        )
        for (target, state), count in self._generations.items():
            generations.add_metric([target, state], count)
        yield generations
