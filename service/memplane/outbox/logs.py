"""The structured fields of a log line about one event (seed `002` section 13)."""

from __future__ import annotations

from collections.abc import Sequence

from memplane.outbox.events import Event

EVENT_FIELDS = ("event_id", "memory_id", "user_id", "version", "target", "attempts", "trace_id")
"""On every line of a worker's log; null where a line is about no event."""

SHOWN = 20
"""Events of a batch that a line names."""


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


def batch_fields(events: Sequence[Event], **more: object) -> dict[str, object]:
    """As `event_fields` for a line about several events: lists, of the first `SHOWN`, and how many there are."""
    if len(events) == 1:
        return event_fields(events[0], **more)
    shown = [event_fields(event) for event in events[:SHOWN]]
    lists: dict[str, object] = {name: [fields[name] for fields in shown] for name in EVENT_FIELDS if name != "target"}
    target = events[0].target.value if events else None
    return {**lists, "target": target, "events": len(events), **more}


def trace_id(traceparent: str | None) -> str | None:
    """The trace id of a W3C traceparent (`00-<trace id>-<span id>-<flags>`); None when there is none."""
    if traceparent is None:
        return None
    parts = traceparent.split("-")
    return parts[1] if len(parts) == 4 else None
