"""The cache's metrics: `memory_cache_reload_total{reason}` (seed `002` 13) and `memory_cache_version_lag_seconds`."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from memplane.cache.ltm import LtmCache

REASONS = ("miss", "ttl", "invalidated", "version")


class CacheMetrics(Collector):
    """Reads the cache whenever metrics are scraped."""

    def __init__(self, cache: LtmCache, registry: CollectorRegistry) -> None:
        self._cache = cache
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        reloads = CounterMetricFamily(
            "memory_cache_reload", "Bodies that were read from PostgreSQL into the LTM cache", labels=["reason"]
        )
        for reason in REASONS:
            reloads.add_metric([reason], self._cache.reloads[reason])
        yield reloads
        yield GaugeMetricFamily(
            "memory_cache_version_lag_seconds",
            "How long the stalest body that the last poll found in the LTM cache had been out of date",
            value=self._cache.version_lag_seconds,
        )
        yield GaugeMetricFamily("memory_cache_bytes", "Bytes that the LTM cache holds, about", value=self._cache.size)
