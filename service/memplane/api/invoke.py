"""`POST /ditto/invoke`: the six nodes for other runtimes, over their own transport protocol (design section 4).

The protocol is that of `memplane.runtime`: fixed errors, no details. Identity and scope are the service's: a call
reaches no memories but those of its credential's user. What a node answers travels as its result inside the payload.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from memplane.api.auth.identity import Authenticator, Identity
from memplane.api.auth.scope import USER_HEADER, check_role, scope_of
from memplane.api.call_limits import oversized_list
from memplane.api.errors import HttpError, Unavailable
from memplane.api.http_metrics import HttpMetrics
from memplane.api.plane import NodePlane
from memplane.contracts import NODES, NodeError, NodeResult, Scope
from memplane.runtime import InvokeApp, TransportError
from memplane.runtime.envelope import Invocation, decode_payload, parse_invocation
from memplane.settings import ServiceSettings
from memplane.signal import Signal, SignalTimeout

SERVICE_ADDRESS: Final = {
    "workerId": "memory",
    "workerType": "MEMORY",
    "hostId": "memplane",
    "processId": "memplane",
}
"""The address that other runtimes register; the same for every replica behind one load balancer."""

IGNORED_SIGNAL_GRACE = 5.0
"""Seconds beyond the request timeout for a plugin that does not react to its signal."""


def peer_endpoint(
    plane: NodePlane, authenticator: Authenticator, settings: ServiceSettings, metrics: HttpMetrics
) -> InvokeApp:
    """The ASGI application of the route; the service mounts it where `service.invoke` says so."""
    route = _Route(plane, settings, metrics)

    async def authorize(headers: Iterable[tuple[bytes, bytes]]) -> _Caller | None:
        given = list(headers)
        try:
            identity = await authenticator.authenticate(dict(given))
            scope = scope_of(identity, [value for name, value in given if name == USER_HEADER])
        except HttpError:
            return None  # the protocol knows one answer for all of them
        return _Caller(route, identity, scope)

    return InvokeApp(authorize, max_body_bytes=settings.max_body_bytes, body_seconds=settings.request_timeout)


@dataclass(slots=True)
class _Route:
    """What all calls over this route share, and how many of them are in flight."""

    plane: NodePlane
    settings: ServiceSettings
    metrics: HttpMetrics
    in_flight: int = 0


class _Caller:
    """Answers invocations on behalf of one authenticated bearer."""

    def __init__(self, route: _Route, identity: Identity, scope: Scope) -> None:
        self._route, self._identity, self._scope = route, identity, scope

    async def receive(self, envelope: object) -> dict[str, Any]:
        """`{invocationId, payload}`. Raises `InvalidInvocation`; whatever else it raises is answered 500."""
        invocation = parse_invocation(envelope)
        if invocation.target.as_wire() != SERVICE_ADDRESS or invocation.node not in NODES:
            raise TransportError("Worker address or Node is mismatched")
        check_role(self._identity, invocation.node)
        route = self._route
        refusal = route.plane.refusal()
        if refusal is not None or route.in_flight >= route.settings.max_in_flight:
            raise Unavailable(refusal or "Too many calls are in flight")
        route.in_flight += 1
        started, status = time.perf_counter(), "error"
        try:
            result = await self._call(invocation)
            status = result.status
        finally:
            route.in_flight -= 1
            route.metrics.observe(invocation.node, status, time.perf_counter() - started)
        return {"invocationId": invocation.id, "payload": {"kind": "inline", "value": result.as_wire()}}

    async def _call(self, invocation: Invocation) -> NodeResult[Any]:
        document = await decode_payload(invocation.payload, None)
        message = oversized_list(invocation.node, document)
        if message is not None:
            return NodeResult(invocation.id, invocation.node, "failed", error=NodeError("INVALID_INPUT", message))
        signal, seconds = Signal(), self._route.settings.request_timeout
        late = SignalTimeout("the request took too long")
        timer = asyncio.get_running_loop().call_later(seconds, signal.abort, late)
        try:
            async with asyncio.timeout(seconds + IGNORED_SIGNAL_GRACE):
                return (await self._route.plane.call(self._scope, invocation.node, document, signal)).result
        finally:
            timer.cancel()
