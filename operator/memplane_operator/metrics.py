"""The operator's own metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

OUTCOMES = ("done", "failed")
"""How a reconciliation may end, the values of the label `outcome`."""


class OperatorMetrics:
    """Instruments on one registry."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.reconciles = Counter(
            "memplane_operator_reconcile_total", "Reconciliations by outcome.", ["outcome"], registry=self.registry
        )
        for outcome in OUTCOMES:
            # Exported as 0 from the start: Prometheus sees an increase only of series that it knows.
            self.reconciles.labels(outcome)
        self.duration = Histogram(
            "memplane_operator_reconcile_seconds", "Duration of one reconciliation.", registry=self.registry
        )
        self.writes = Counter(
            "memplane_operator_writes_total",
            "Objects written, by kind and verb.",
            ["kind", "verb"],
            registry=self.registry,
        )
        self.requests = Counter(
            "memplane_operator_api_requests_total",
            "Requests to the API server, by HTTP method and kind; the watch is not among them.",
            ["method", "kind"],
            registry=self.registry,
        )
        self.backends = Gauge("memplane_operator_backends", "Backends by readiness.", ["ready"], registry=self.registry)
        self.queue = Gauge("memplane_operator_queue_length", "Backends that wait for a worker.", registry=self.registry)
        self.leading = Gauge("memplane_operator_leading", "1 while this process leads.", registry=self.registry)
        self.last_list = Gauge(
            "memplane_operator_last_list_timestamp_seconds",
            "When the backends were last listed.",
            registry=self.registry,
        )

    def requested(self, method: str, kind: str) -> None:
        """Count one request to the API server."""
        self.requests.labels(method, kind).inc()
