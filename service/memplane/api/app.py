"""The service's ASGI application: node calls on a path of their own, everything else on FastAPI.

Every answer carries X-Request-Id. Errors of every route have one shape:
`{"error": {"code", "message"}, "requestId"}`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from prometheus_client import CollectorRegistry
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from memplane.api.admin.routes import AdminPlane, admin_router
from memplane.api.asgi import error_body, header_map
from memplane.api.auth.identity import Authenticator
from memplane.api.auth.status_key import StatusKey
from memplane.api.capabilities import Capabilities, capabilities_router
from memplane.api.errors import HttpError
from memplane.api.health_routes import health_router
from memplane.api.http_metrics import HttpMetrics
from memplane.api.invoke import peer_endpoint
from memplane.api.logs import describe
from memplane.api.metrics_route import Exposition, metrics_router
from memplane.api.nodes import PREFIX, NodeEndpoint
from memplane.api.openapi import openapi_document
from memplane.api.plane import Health, NodePlane
from memplane.api.recovery import recovery_router
from memplane.api.reference import reference_router
from memplane.api.request_context import RequestContext, current_request, request_context
from memplane.runtime.transports.protocol import PATH
from memplane.schema.database import Database
from memplane.settings import AuthSettings, ServiceSettings
from memplane.tracing import Tracer

log = logging.getLogger(__name__)

_CODES = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED"}


@dataclass(frozen=True, slots=True)
class Parts:
    """What the application is made of; `compose.py` builds them."""

    nodes: NodePlane
    health: Health
    admin: AdminPlane
    metrics: Exposition
    authenticator: Authenticator
    status_key: StatusKey
    registry: CollectorRegistry
    capabilities: Capabilities
    tasks: Database | None
    """Where recovery tasks are; None: this process has none."""
    tracer: Tracer | None = None


def create_app(parts: Parts, service: ServiceSettings, auth: AuthSettings) -> ASGIApp:
    """The application. It starts and stops nothing: that is its composer's work."""
    metrics = HttpMetrics(parts.registry)
    nodes = NodeEndpoint(parts.nodes, parts.authenticator, service, metrics, parts.tracer)
    peers = peer_endpoint(parts.nodes, parts.authenticator, service, metrics) if service.invoke else None
    rest = _rest(parts, service, auth)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["path"].startswith(PREFIX):
            await nodes(scope, receive, send)
            return
        if peers is not None and scope["path"] == PATH:
            await peers(scope, receive, send)
            return
        await _with_request_id(rest, scope, receive, send)

    return app


def _rest(parts: Parts, service: ServiceSettings, auth: AuthSettings) -> FastAPI:
    app = FastAPI(title="memplane", docs_url=None, redoc_url=None, openapi_url=None)
    app.include_router(health_router(parts.health))
    app.include_router(metrics_router(parts.metrics, parts.authenticator, parts.status_key, auth))
    app.include_router(admin_router(parts.admin, parts.authenticator, parts.status_key))
    app.include_router(capabilities_router(parts.capabilities, parts.authenticator))
    if parts.tasks is not None:
        app.include_router(recovery_router(parts.tasks, parts.authenticator))
    if service.docs:
        app.include_router(reference_router(openapi_document(app, auth)))
    app.add_exception_handler(HttpError, _on_http_error)
    app.add_exception_handler(HTTPException, _on_starlette_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(Exception, _on_unexpected)
    return app


async def _with_request_id(rest: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    request = request_context(header_map(scope))
    token = current_request.set(request)

    async def send_with_id(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], (b"x-request-id", request.request_id.encode("ascii"))]
        await send(message)

    try:
        await rest(scope, receive, send_with_id)
    except Exception as error:
        # FastAPI has answered 500 by `_on_unexpected` and raises once more, for whoever logs.
        log.exception("a request failed unexpectedly: %s", describe(error))
    finally:
        current_request.reset(token)


def _answer(
    status: int, code: str, message: str, headers: Mapping[str, str], request: RequestContext | None
) -> Response:
    body = error_body(code, message, request or RequestContext("-"))
    return Response(body, status, {**headers, "Cache-Control": "no-store"}, "application/json")


async def _on_http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HttpError)
    return _answer(error.status, error.code, error.message, error.headers, current_request.get())


async def _on_starlette_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = _CODES.get(error.status_code, "HTTP_ERROR")
    return _answer(error.status_code, code, str(error.detail), error.headers or {}, current_request.get())


async def _on_invalid(_: Request, error: Exception) -> Response:
    """Parameters and bodies of admin calls: which one is wrong and why, never its value."""
    assert isinstance(error, RequestValidationError)
    message = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
    return _answer(400, "INVALID_REQUEST", message[:2000], {}, current_request.get())


async def _on_unexpected(_: Request, _error: Exception) -> Response:
    return _answer(500, "INTERNAL", "The service failed", {}, current_request.get())
