"""The tracer: what is a child of what, what is sampled, and what it costs when it is off."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from uuid import uuid4

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from pydantic import ValidationError

from memplane.outbox.delivery import Delivered
from memplane.outbox.events import Event, Family, Outcome, Target, Task, Truth, Verdict
from memplane.outbox.logs import EVENT_FIELDS, batch_fields
from memplane.outbox.putback import Failure
from memplane.outbox.traces import BatchTrace
from memplane.settings import TracingSettings
from memplane.tracing import LINKS, OtelTracer, start_tracer

PARENT = f"00-{'a' * 32}-{'b' * 16}-01"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracer(exporter: InMemorySpanExporter) -> OtelTracer:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return OtelTracer(provider)


def event(number: int, traceparent: str | None = PARENT) -> Event:
    return Event(
        number, uuid4(), number, "acme", "ann", 3, "upsert_memory_vector", Family.NODE, Target.MILVUS, {}, 1,
        datetime.now(UTC), uuid4(), traceparent=traceparent,
    )  # fmt: skip


def test_a_span_continues_the_trace_that_it_is_given(tracer: OtelTracer, exporter: InMemorySpanExporter) -> None:
    outer = tracer.start("outer", kind="server", parent=PARENT)
    inner = tracer.start("inner", kind="consumer", parent=outer.traceparent)
    inner.end()
    outer.end(error="it failed")
    first, second = exporter.get_finished_spans()
    assert first.context is not None
    assert first.parent is not None
    assert f"{first.context.trace_id:032x}" == "a" * 32
    assert outer.traceparent.split("-")[2] == f"{first.parent.span_id:016x}"
    assert second.status.status_code is StatusCode.ERROR
    tracer.close()
    tracer.close()


@pytest.mark.parametrize("parent", [None, "nonsense", f"00-{'0' * 32}-{'b' * 16}-01"])
def test_without_a_readable_parent_a_trace_begins(tracer: OtelTracer, parent: str | None) -> None:
    one, other = (tracer.start("x", kind="server", parent=parent) for _ in range(2))
    assert one.traceparent.split("-")[1] != other.traceparent.split("-")[1]
    assert len(one.traceparent) == 55


def test_what_the_caller_does_not_sample_is_not_recorded(tracer: OtelTracer, exporter: InMemorySpanExporter) -> None:
    span = tracer.start("x", kind="server", parent=PARENT[:-2] + "00")
    span.end()
    assert exporter.get_finished_spans() == ()
    assert span.traceparent.endswith("-00"), "the decision travels on"


def test_the_events_of_a_batch_end_as_they_ended(tracer: OtelTracer, exporter: InMemorySpanExporter) -> None:
    applied, refused, returned, untraced = event(1), event(2), event(3), event(4, None)
    trace = BatchTrace(tracer, Target.MILVUS, [applied, refused, returned, untraced])
    delivered = Delivered(
        outcomes=[(Task(applied, Truth(1, True, 3)), Outcome(Verdict.APPLIED))],
        failures=[Failure(refused, "too long")],
        returned=[returned],
    )
    trace.end(delivered)
    spans = exporter.get_finished_spans()
    assert [(span.attributes or {}).get("memplane.outcome") for span in spans] == [
        "applied",
        "refused",
        "returned",
        None,
    ]
    assert [span.status.description for span in spans] == [None, "too long", None, None]
    assert spans[-1].name == "project a batch to milvus"
    assert (spans[-1].attributes or {})["memplane.events"] == 4


def test_the_links_of_a_batch_are_bounded(tracer: OtelTracer, exporter: InMemorySpanExporter) -> None:
    events = [event(number, f"00-{number:032x}-{'b' * 16}-01") for number in range(1, 300)]
    BatchTrace(tracer, Target.MILVUS, events).end(Delivered())
    batch = exporter.get_finished_spans()[-1]
    assert len(batch.links) == LINKS


def test_tracing_is_off_unless_a_collector_is_named() -> None:
    assert start_tracer(TracingSettings(), "service") is None
    BatchTrace(None, Target.MILVUS, [event(1)]).end(Delivered())
    with pytest.raises(ValidationError):
        TracingSettings(endpoint="collector:4318")
    code = "import sys, memplane.api.compose; sys.exit('opentelemetry.sdk.trace' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_line_about_a_batch_names_its_events() -> None:
    fields = batch_fields([event(number) for number in range(30)], reason="away")
    assert set(EVENT_FIELDS) <= set(fields)
    assert fields["memory_id"] == list(range(20))
    assert (fields["events"], fields["target"], fields["reason"]) == (30, "milvus", "away")
    assert batch_fields([event(7)])["memory_id"] == 7
