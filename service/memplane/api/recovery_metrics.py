"""Recovery tasks in figures: how many at each stage, and how long those have waited that wait for somebody."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from prometheus_client.core import GaugeMetricFamily, Metric

from memplane.outbox.counted import CountedMetrics
from memplane.schema.database import Database

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


Counted: TypeAlias = dict[str, tuple[int, float]]
"""Stage → tasks, and seconds since the oldest of them reached it."""


class RecoveryMetrics(CountedMetrics[Counted]):
    """`memplane_recovery_jobs{stage}` and `memplane_recovery_oldest_seconds{stage}`."""

    async def count(self, database: Database) -> Counted:
        async with database.acquire() as connection:
            rows = await connection.fetch(database.sql(_COUNTS))
        return {row["stage"]: (row["jobs"], row["oldest"]) for row in rows}

    def render(self, figures: Counted) -> Iterator[Metric]:
        jobs = GaugeMetricFamily("memplane_recovery_jobs", "Recovery tasks at a stage", labels=["stage"])
        for stage in STAGES:
            jobs.add_metric([stage], figures.get(stage, (0, 0.0))[0])
        yield jobs
        oldest = GaugeMetricFamily(
            "memplane_recovery_oldest_seconds", "How long the oldest task has been at this stage", labels=["stage"]
        )
        for stage in WAITING:
            oldest.add_metric([stage], figures.get(stage, (0, 0.0))[1])
        yield oldest
