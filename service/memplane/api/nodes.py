"""`POST /v1/nodes/{NODE}`: the body is the node's input, the answer is 200 with the NodeResult, whatever its status.

The hot path of the service, so it speaks ASGI itself: one pass over the headers, one parse, one rendering, no
validation beside the node's own. Other statuses: 400 unreadable JSON or no user named, 401, 403, 405, 413, 415, and 503
with Retry-After while PostgreSQL was never reached or too many calls are in flight.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from uuid import uuid4

from starlette.types import Receive, Scope, Send

from memplane.api import strict_json
from memplane.api.asgi import ClientGone, check_json_type, header_map, read_body, send_error, send_json
from memplane.api.auth.identity import Authenticator
from memplane.api.auth.scope import USER_HEADER, check_role, scope_of
from memplane.api.call_guard import CallGuard
from memplane.api.call_limits import oversized_list
from memplane.api.errors import HttpError, Unavailable
from memplane.api.http_metrics import HttpMetrics
from memplane.api.logs import describe
from memplane.api.plane import Answer, NodePlane
from memplane.api.request_context import RequestContext, current_request, request_context
from memplane.contracts import JSON, NODES, NodeError, NodeResult
from memplane.contracts import Scope as MemoryScope
from memplane.schema.tracing import current_traceparent
from memplane.settings import ServiceSettings
from memplane.tracing import Span, Tracer

log = logging.getLogger(__name__)

PREFIX = "/v1/nodes/"
IN_THREAD_BYTES = 1 << 20
"""Bodies larger than this are parsed in a thread, so that other requests get their turn meanwhile."""

_KNOWN = frozenset(NODES)


class NodeEndpoint:
    """The ASGI application behind `PREFIX`."""

    def __init__(
        self,
        plane: NodePlane,
        authenticator: Authenticator,
        settings: ServiceSettings,
        metrics: HttpMetrics,
        tracer: Tracer | None = None,
    ) -> None:
        self._plane = plane
        self._authenticator = authenticator
        self._settings = settings
        self._metrics = metrics
        self._tracer = tracer
        self._in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        headers = header_map(scope)
        request = request_context(headers)
        token = current_request.set(request)
        node = scope["path"][len(PREFIX) :]
        span = self._begin(node, request)
        current_traceparent.set(request.traceparent)
        status = "error"
        try:
            answer = await self._answer(scope, headers, node, receive)
            status = answer.result.status
            await self._send(send, answer, request)
        except HttpError as error:
            status = str(error.status)
            await send_error(receive, send, error, request)
        except ClientGone:
            status = "client_gone"
        except Exception as error:
            # The last line of defence: whatever it was, the caller learns nothing of it and the log has its class.
            log.exception("a node call failed unexpectedly: %s", describe(error))
            await send_error(receive, send, HttpError(500, "INTERNAL", "The service failed"), request)
        finally:
            self._finish(node, status, time.perf_counter() - started)
            if span is not None:
                failed = status not in ("success", "failed", "client_gone")
                span.end(error=status if failed else None, attributes={"memplane.status": status})
            current_request.reset(token)

    def _begin(self, node: str, request: RequestContext) -> Span | None:
        """The span of this call; from here on the request's trace context is that span's."""
        if self._tracer is None:
            request.ensure_trace()
            return None
        known = node if node in _KNOWN else "unknown"
        span = self._tracer.start(
            known, kind="server", parent=request.traceparent, attributes={"memplane.request_id": request.request_id}
        )
        request.adopt(span.traceparent)
        return span

    async def _answer(self, scope: Scope, headers: Mapping[bytes, bytes], node: str, receive: Receive) -> Answer:
        if scope["method"] != "POST":
            raise HttpError(405, "METHOD_NOT_ALLOWED", "Nodes are called with POST", {"Allow": "POST"})
        identity = await self._authenticator.authenticate(headers)
        check_role(identity, node)
        memory_scope = scope_of(identity, [value for name, value in scope["headers"] if name == USER_HEADER])
        check_json_type(headers)
        refusal = self._plane.refusal()
        if refusal is not None:
            raise Unavailable(refusal)
        if self._in_flight >= self._settings.max_in_flight:
            raise Unavailable("Too many calls are in flight")
        self._in_flight += 1
        try:
            return await self._bounded(memory_scope, headers, node, receive)
        finally:
            self._in_flight -= 1

    async def _bounded(
        self, memory_scope: MemoryScope, headers: Mapping[bytes, bytes], node: str, receive: Receive
    ) -> Answer:
        """Read and call within the request's time."""
        guard = CallGuard(receive, self._settings.request_timeout)
        calling = False
        try:
            body = await read_body(headers, receive, self._settings.max_body_bytes)
            guard.calling()
            calling = True
            document = await _parse(body)
            message = oversized_list(node, document)
            if message is not None:
                return _invalid_input(node, message)
            return await self._plane.call(memory_scope, node, document, guard.signal)
        except asyncio.CancelledError:
            if not guard.conclude():
                raise
            if not calling:
                raise HttpError(408, "TIMEOUT", "The body did not arrive in time", {"Connection": "close"}) from None
            raise HttpError(504, "TIMEOUT", "The operation did not end in time; it may have taken effect") from None
        finally:
            guard.stop()

    async def _send(self, send: Send, answer: Answer, request: RequestContext) -> None:
        try:
            body = strict_json.render(answer.result.as_wire())
        except (TypeError, ValueError):
            log.error("a plugin's output is not JSON", extra={"node": answer.result.node})
            result: NodeResult[JSON] = NodeResult(
                answer.result.execution_id,
                answer.result.node,
                "failed",
                error=NodeError("INVALID_BACKEND_OUTPUT", "MEMORY backend returned an invalid result"),
            )
            body = strict_json.render(result.as_wire())
        extra = [(b"x-memory-degraded", ",".join(answer.degraded).encode("ascii"))] if answer.degraded else []
        await send_json(send, 200, body, request, extra)

    def _finish(self, node: str, status: str, seconds: float) -> None:
        known = node if node in _KNOWN else "unknown"
        self._metrics.observe(known, status, seconds)
        if self._settings.access_log or status not in ("success", "failed") or seconds >= self._settings.slow_seconds:
            log.info("request", extra={"node": known, "status": status, "milliseconds": round(seconds * 1000, 2)})


async def _parse(body: bytes) -> JSON:
    try:
        if len(body) > IN_THREAD_BYTES:
            return await asyncio.to_thread(strict_json.parse, body)
        return strict_json.parse(body)
    except strict_json.BadJson as error:
        raise HttpError(400, "BAD_JSON", f"The body is not acceptable JSON: {error.reason}") from None


def _invalid_input(node: str, message: str) -> Answer:
    return Answer(NodeResult(str(uuid4()), node, "failed", error=NodeError("INVALID_INPUT", message)))
