"""The spans of an outbox worker: one for each event that came with a trace, in that trace, and one for its batch.

The batch's span is a trace of its own, linked with the events', because a batch carries the events of many requests.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from memplane.outbox.delivery import Delivered
from memplane.outbox.events import Event, Target
from memplane.tracing import Span, Tracer


class BatchTrace:
    """From a claim to its settlement. Does nothing without a tracer."""

    def __init__(self, tracer: Tracer | None, target: Target, events: Sequence[Event]) -> None:
        self._tracer = tracer
        self._traced = [event for event in events if event.traceparent is not None] if tracer is not None else []
        self._began = time.time_ns()
        self._batch: Span | None = None
        if tracer is not None and self._traced:
            self._batch = tracer.start(
                f"project a batch to {target.value}",
                kind="consumer",
                links=[event.traceparent for event in self._traced if event.traceparent is not None],
                attributes={"memplane.target": target.value, "memplane.events": len(events)},
            )

    def end(self, delivered: Delivered) -> None:
        """The batch is settled, or given up."""
        if self._tracer is None or self._batch is None:
            return
        outcomes = {task.event.id: outcome.verdict.value for task, outcome in delivered.outcomes}
        refused = {failure.event.id: failure.reason for failure in delivered.failures}
        for event in self._traced:
            span = self._tracer.start(
                event.event_type,
                kind="consumer",
                parent=event.traceparent,
                links=[self._batch.traceparent],
                attributes=_attributes(event),
                started_ns=self._began,
            )
            outcome = outcomes.get(event.id, "refused" if event.id in refused else "returned")
            span.end(error=refused.get(event.id), attributes={"memplane.outcome": outcome})
        self._batch.end(error="the target is unhealthy" if delivered.unhealthy else None)


def _attributes(event: Event) -> dict[str, str | int]:
    return {
        "memplane.event_id": str(event.event_id),
        "memplane.memory_id": event.memory_id,
        "memplane.user_id": event.user_id,
        "memplane.version": event.version,
        "memplane.target": event.target.value,
        "memplane.attempts": event.attempts,
    }
