"""The structured fields of a log line about one event (seed `002` section 13)."""

from __future__ import annotations

from memplane.outbox.events import Event


def event_fields(event: Event, **more: object) -> dict[str, object]:
    """For `extra=` of a logging call: who the event is, and the trace that caused it."""
    return {
        "event_id": str(event.event_id),
        "memory_id": event.memory_id,
        "user_id": event.user_id,
        "version": event.version,
        "target": event.target.value,
        "attempts": event.attempts,
        "trace_id": trace_id(event.traceparent),
        **more,
    }


def trace_id(traceparent: str | None) -> str | None:
    """The trace id of a W3C traceparent (`00-<trace id>-<span id>-<flags>`); None when there is none."""
    if traceparent is None:
        return None
    parts = traceparent.split("-")
    return parts[1] if len(parts) == 4 else None
