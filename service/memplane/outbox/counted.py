"""Metrics that are counted in the database, from a snapshot, so that they exist with zero workers and CronJobs."""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from memplane.outbox.patience import DATABASE_ERRORS
from memplane.schema.database import Database

SNAPSHOT_SECONDS: Final = 10.0
"""Oldest snapshot that is shown, in seconds."""

Figures = TypeVar("Figures")


class CountedMetrics(Collector, Generic[Figures]):
    """Figures of the database, counted again when the last count is older than `SNAPSHOT_SECONDS`.

    Await `refresh()` before the registry is rendered. While the database is away, or has a schema from before the
    tables that are counted, these metrics are absent.
    """

    def __init__(
        self, database: Database, registry: CollectorRegistry, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._database, self._clock = database, clock
        self._taken_at: float | None = None
        self._figures: Figures | None = None
        self._refreshing = asyncio.Lock()
        registry.register(self)

    @abstractmethod
    async def count(self, database: Database) -> Figures:
        """Count. May raise what PostgreSQL and its driver raise."""

    @abstractmethod
    def render(self, figures: Figures) -> Iterator[Metric]:
        """The metrics of a count."""

    async def refresh(self) -> None:
        """Count again if the last count is too old. Never raises for a database that is away."""
        async with self._refreshing:
            if self._taken_at is not None and self._clock() - self._taken_at < SNAPSHOT_SECONDS:
                return
            try:
                self._figures = await self.count(self._database)
            except DATABASE_ERRORS:
                self._figures = None
            self._taken_at = self._clock()

    def collect(self) -> Iterator[Metric]:
        if self._figures is not None:
            yield from self.render(self._figures)
