"""What belongs to one request and must reach every log line made on its behalf."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass

REQUEST_ID_HEADER = b"x-request-id"
_ACCEPTED_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")


@dataclass(slots=True)
class RequestContext:
    """`trace_id` and `traceparent` are of the caller's W3C trace context, when it sent a valid one."""

    request_id: str
    trace_id: str | None = None
    traceparent: str | None = None

    def ensure_trace(self) -> None:
        """A caller that sent no trace context gets one that nobody samples: its id joins the logs of all processes."""
        if self.traceparent is None:
            self.adopt(f"00-{uuid.uuid4().hex}-{uuid.uuid4().hex[:16]}-00")

    def adopt(self, traceparent: str) -> None:
        """From now on the request belongs to this span."""
        self.traceparent = traceparent
        self.trace_id = traceparent.split("-")[1]


current_request: ContextVar[RequestContext | None] = ContextVar("memplane_request", default=None)
"""The request that this task works for; None outside of requests."""


def request_context(headers: Mapping[bytes, bytes]) -> RequestContext:
    """The caller's X-Request-Id when it is sane (1 to 128 of letters, digits and `._:-`), else a new one."""
    given = headers.get(REQUEST_ID_HEADER, b"")
    request_id = given.decode("ascii") if _ACCEPTED_ID.fullmatch(given) else uuid.uuid4().hex
    parent = headers.get(b"traceparent", b"")
    match = _TRACEPARENT.fullmatch(parent)
    if match is None or not match[1].strip(b"0") or not match[2].strip(b"0"):
        return RequestContext(request_id)
    return RequestContext(request_id, match[1].decode("ascii"), parent.decode("ascii"))
