"""What belongs to one request and must reach every log line made on its behalf."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass

REQUEST_ID_HEADER = b"x-request-id"
_ACCEPTED_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
_TRACE_ID = re.compile(r"(?!0{32})[0-9a-f]{32}")
_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")


@dataclass(slots=True)
class RequestContext:
    """`trace_id` and `traceparent` are of the caller's W3C trace context, when it sent a valid one."""

    request_id: str
    trace_id: str | None = None
    traceparent: str | None = None

    def ensure_trace(self) -> None:
        """A caller that sent no trace context gets one that nobody samples, so that logs of all processes join.

        Its trace id is the request id, when that has the form of one: every id that is made here has.
        """
        if self.traceparent is None:
            trace_id = self.request_id if _TRACE_ID.fullmatch(self.request_id) else os.urandom(16).hex()
            self.adopt(f"00-{trace_id}-{os.urandom(8).hex()}-00")

    def adopt(self, traceparent: str) -> None:
        """From now on the request belongs to this span."""
        self.traceparent = traceparent
        self.trace_id = traceparent.split("-")[1]


current_request: ContextVar[RequestContext | None] = ContextVar("memplane_request", default=None)
"""The request that this task works for; None outside of requests."""


def request_context(headers: Mapping[bytes, bytes]) -> RequestContext:
    """The caller's X-Request-Id when it is sane (1 to 128 of letters, digits and `._:-`), else a new one."""
    given = headers.get(REQUEST_ID_HEADER, b"")
    request_id = given.decode("ascii") if _ACCEPTED_ID.fullmatch(given) else os.urandom(16).hex()
    parent = headers.get(b"traceparent", b"")
    match = _TRACEPARENT.fullmatch(parent)
    if match is None or not match[1].strip(b"0") or not match[2].strip(b"0"):
        return RequestContext(request_id)
    return RequestContext(request_id, match[1].decode("ascii"), parent.decode("ascii"))
