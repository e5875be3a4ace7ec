"""The trace context of the call that a task works for; a change hands it on to the events it makes."""

from __future__ import annotations

from contextvars import ContextVar

current_traceparent: ContextVar[str | None] = ContextVar("memplane_traceparent", default=None)
"""A W3C `traceparent`, set by whoever receives the call; None outside of traces."""
