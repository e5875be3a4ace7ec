"""All metrics of memplane on one registry: the nine of the seed (`002` section 13) with exactly their names and labels,
and the four of design section 6.

What a process counts itself is incremented where it happens; the LTM cache's two are in `cache/metrics.py`. What is
counted in the database is exported from a cached snapshot by `DatabaseMetrics`, so that it exists with zero workers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.registry import Collector

from memplane.outbox.admin import Backlog, backlog
from memplane.outbox.counted import CountedMetrics
from memplane.outbox.events import Target
from memplane.schema.database import Database

LATENCY_BUCKETS: tuple[float, ...] = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0,
)  # fmt: skip


class LatencyHistogram(Collector):
    """`memory_projection_latency_seconds{target}`: from commit to projected, by the database's clock.

    Observes a whole batch at once, which the client's own histogram cannot.
    """

    def __init__(self, buckets: Sequence[float] = LATENCY_BUCKETS) -> None:
        self._bounds = list(buckets)
        self._counts: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}

    def observe(self, target: Target, seconds: Iterable[float]) -> None:
        counts = self._counts.setdefault(target.value, [0] * (len(self._bounds) + 1))
        total = 0.0
        for value in seconds:
            counts[bisect_left(self._bounds, value)] += 1
            total += value
        self._sums[target.value] = self._sums.get(target.value, 0.0) + total

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(
            "memory_projection_latency_seconds", "From the commit of a change to its projection", labels=["target"]
        )
        for target, counts in self._counts.items():
            cumulative, buckets = 0, []
            for bound, count in zip([*map(str, self._bounds), "+Inf"], counts, strict=True):
                cumulative += count
                buckets.append((bound, float(cumulative)))
            family.add_metric([target], buckets, self._sums.get(target, 0.0))
        yield family


class Metrics:
    """What this process counts. Create it once per registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.retries = Counter(
            "memory_outbox_retry_total", "Events charged with a failed attempt", ["target"], registry=registry
        )
        self.latency = LatencyHistogram()
        registry.register(self.latency)
        self.consecutive_failures = Gauge(
            "memory_projection_consecutive_failures", "Batches in a row that failed", ["target"], registry=registry
        )
        self.hash_conflicts = Counter(
            "memory_projection_hash_conflict_total",
            "Objects that held the projected version with another hash",
            ["target"],
            registry=registry,
        )
        self.shadowed = Counter(
            "memory_projection_shadow_total",
            "Events compared in Shadow mode, by whether the target held the truth",
            ["target", "result"],
            registry=registry,
        )
        self.search_degraded = Counter(
            "memory_search_degraded_total", "Searches answered without this target", ["target"], registry=registry
        )

    def announce(self, target: Target) -> None:
        """Export 0 for what has not happened yet: Prometheus sees an increase only of series that it knows."""
        self.retries.labels(target.value)
        self.consecutive_failures.labels(target.value)
        self.hash_conflicts.labels(target.value)


@dataclass(frozen=True, slots=True)
class _Counted:
    backlog: Backlog
    drift: list[tuple[str, str, int, int]]
    completed: list[tuple[str, str, float]]


class DatabaseMetrics(CountedMetrics[_Counted]):
    """The backlog, and what reconciliation has found and repaired."""

    async def count(self, database: Database) -> _Counted:
        return _Counted(await backlog(database), await _drift(database), await _last_completed(database))

    def render(self, figures: _Counted) -> Iterator[Metric]:
        yield from _backlog_metrics(figures.backlog)
        yield from _drift_metrics(figures.drift)
        yield _last_metric(figures.completed)


def _backlog_metrics(figures: Backlog) -> Iterator[Metric]:
    pending = GaugeMetricFamily("memory_outbox_pending_total", "Events that wait", labels=["target", "event_type"])
    for key, count in figures.pending.items():
        pending.add_metric(key, count)
    yield pending
    oldest = GaugeMetricFamily(
        "memory_outbox_oldest_pending_seconds", "Age of the oldest event that waits", labels=["target"]
    )
    for target in Target:
        oldest.add_metric([target.value], figures.oldest_pending_seconds.get(target.value, 0.0))
    yield oldest
    yield GaugeMetricFamily(
        "memory_outbox_processing_total", "Events in flight", value=sum(figures.processing.values())
    )
    dead = GaugeMetricFamily("memory_outbox_dead_total", "Events given up", labels=["target", "event_type"])
    for key, count in figures.dead.items():
        dead.add_metric(key, count)
    yield dead


# What deleted runs had counted stands in `reconciliation_total`, so that the counters never fall.
_DRIFT = """
SELECT target, kind, sum(mismatches)::bigint AS mismatches, sum(repaired)::bigint AS repaired
FROM (
    SELECT r.target, k.kind, COALESCE((r.mismatches ->> k.kind)::bigint, 0) AS mismatches,
           COALESCE((r.repaired ->> k.kind)::bigint, 0) AS repaired
    FROM {schema}.reconciliation_run AS r
    CROSS JOIN LATERAL (
        SELECT jsonb_object_keys(r.mismatches) AS kind UNION SELECT jsonb_object_keys(r.repaired)) AS k
    UNION ALL
    SELECT target, type, mismatches, repaired FROM {schema}.reconciliation_total) AS counted
GROUP BY target, kind
"""

_LAST_COMPLETED = """
SELECT target, kind, EXTRACT(EPOCH FROM max(finished_at))::float8 AS finished
FROM {schema}.reconciliation_run WHERE state = 'completed' AND finished_at IS NOT NULL GROUP BY target, kind
"""


async def _drift(database: Database) -> list[tuple[str, str, int, int]]:
    """(target, kind, mismatches, repaired) over all runs that there ever were."""
    async with database.acquire() as connection:
        rows = await connection.fetch(database.sql(_DRIFT))
    return [(row["target"], row["kind"], row["mismatches"], row["repaired"]) for row in rows]


async def _last_completed(database: Database) -> list[tuple[str, str, float]]:
    """(target, full or incremental, seconds since 1970) of the newest complete runs."""
    async with database.acquire() as connection:
        rows = await connection.fetch(database.sql(_LAST_COMPLETED))
    return [(row["target"], row["kind"], row["finished"]) for row in rows]


def _last_metric(completed: Sequence[tuple[str, str, float]]) -> Metric:
    last = GaugeMetricFamily(
        "memory_reconciliation_last_completed_seconds",
        "When the newest complete run ended, in seconds since 1970",
        labels=["target", "kind"],
    )
    for target, kind, finished in completed:
        last.add_metric([target, kind], finished)
    return last


def _drift_metrics(drift: Sequence[tuple[str, str, int, int]]) -> Iterator[Metric]:
    mismatch = CounterMetricFamily(
        "memory_reconciliation_mismatch_total", "Differences found", labels=["target", "type"]
    )
    repaired = CounterMetricFamily(
        "memory_reconciliation_repaired_total", "Repairs made for differences", labels=["target", "type"]
    )
    for target, kind, mismatches, repairs in drift:
        mismatch.add_metric([target, kind], mismatches)
        repaired.add_metric([target, kind], repairs)
    yield mismatch
    yield repaired
