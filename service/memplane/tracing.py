"""Traces by OpenTelemetry: off unless a collector is configured; then one trace from the request to each projection.

The service's span is a child of the caller's (`traceparent`, W3C); the event's row carries the service's span; the
worker's span is its child. So a write and everything that follows from it are one trace, across processes and however
much later. Nothing here is imported before it is needed, and without a collector nothing is recorded. Headers of the
exporter come from the standard variables (OTEL_EXPORTER_OTLP_HEADERS). Source: seed `002` section 13.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

from memplane.errors import SettingsError
from memplane.settings import TracingSettings

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Link
    from opentelemetry.trace import Span as OtelSpan

Attributes = Mapping[str, str | int | float | bool]
SpanKind = Literal["server", "consumer", "internal"]
LINKS = 100
"""Links of one span at most; the SDK keeps 128."""


class Span(Protocol):
    """Something that is going on."""

    @property
    def traceparent(self) -> str:
        """What hands this span on: W3C, `00-<trace id>-<span id>-<flags>`."""
        ...

    def end(self, *, error: str | None = None, attributes: Attributes | None = None) -> None:
        """It is over; with `error` (safe to show) it failed."""
        ...


class Tracer(Protocol):
    """Begins spans and sends them somewhere."""

    def start(
        self,
        name: str,
        *,
        kind: SpanKind,
        parent: str | None = None,
        links: Sequence[str] = (),
        attributes: Attributes | None = None,
        started_ns: int | None = None,
    ) -> Span:
        """`parent` and `links` are traceparents; those that cannot be read are left out. `started_ns`: Unix time."""
        ...

    def close(self) -> None:
        """Send what is left, then stop. Idempotent; may take some seconds."""
        ...


def start_tracer(settings: TracingSettings, component: str) -> Tracer | None:
    """The tracer of this process, None when tracing is off. `component`: `service`, `milvus-worker` …

    Raises `SettingsError` when a collector is configured and the extra `otel` is not installed.
    """
    if settings.endpoint is None:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
    except ModuleNotFoundError:
        raise SettingsError("tracing.endpoint needs the extra otel: install memplane[otel]") from None
    provider = TracerProvider(
        resource=Resource.create({SERVICE_NAME: f"memplane-{component}"}),
        sampler=ParentBased(TraceIdRatioBased(settings.sample_ratio)),
        shutdown_on_exit=False,
    )
    exporter = OTLPSpanExporter(endpoint=settings.endpoint, timeout=settings.timeout)
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=1000))
    return OtelTracer(provider)


class OtelTracer:
    """A tracer on an OpenTelemetry provider, which it shuts down at the end."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("memplane")

    def start(
        self,
        name: str,
        *,
        kind: SpanKind,
        parent: str | None = None,
        links: Sequence[str] = (),
        attributes: Attributes | None = None,
        started_ns: int | None = None,
    ) -> Span:
        from opentelemetry import trace

        span = self._tracer.start_span(
            name,
            # An empty context, so that nothing of the process's own joins in.
            context=_context(parent),
            kind=trace.SpanKind[kind.upper()],
            links=_links(links),
            attributes=dict(attributes or {}),
            start_time=started_ns,
        )
        return _Span(span)

    def close(self) -> None:
        self._provider.shutdown()


class _Span:
    def __init__(self, span: OtelSpan) -> None:
        self._span = span

    @property
    def traceparent(self) -> str:
        context = self._span.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"

    def end(self, *, error: str | None = None, attributes: Attributes | None = None) -> None:
        from opentelemetry.trace import Status, StatusCode

        self._span.set_attributes(dict(attributes or {}))
        if error is not None:
            self._span.set_status(Status(StatusCode.ERROR, error))
        self._span.end()


def _context(traceparent: str | None) -> Context:
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    if traceparent is None:
        return Context()
    return TraceContextTextMapPropagator().extract({"traceparent": traceparent}, Context())


def _links(traceparents: Sequence[str]) -> list[Link]:
    from opentelemetry.trace import Link, get_current_span

    contexts = (get_current_span(_context(one)).get_span_context() for one in dict.fromkeys(traceparents))
    return [Link(context) for context in contexts if context.is_valid][:LINKS]
