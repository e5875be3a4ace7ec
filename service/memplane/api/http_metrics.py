"""Metrics of the service's own requests; those of memories and projections are in `memplane.outbox.metrics`."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class HttpMetrics:
    """Counts and times node calls by node and outcome (the result's status, or the HTTP status of an error)."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "memplane_http_requests", "Node calls over HTTP", ["node", "status"], registry=registry
        )
        self._seconds = Histogram(
            "memplane_http_request_seconds",
            "Time from a request's head to its answer",
            ["node"],
            buckets=BUCKETS,
            registry=registry,
        )

        # Looking a child up by its labels costs more than counting with it.
        self._counters: dict[tuple[str, str], Counter] = {}
        self._histograms: dict[str, Histogram] = {}

    def observe(self, node: str, status: str, seconds: float) -> None:
        """`node` and `status` must come from small sets: each pair becomes a time series."""
        counter = self._counters.get((node, status))
        if counter is None:
            counter = self._counters[(node, status)] = self._requests.labels(node, status)
        counter.inc()
        histogram = self._histograms.get(node)
        if histogram is None:
            histogram = self._histograms[node] = self._seconds.labels(node)
        histogram.observe(seconds)
