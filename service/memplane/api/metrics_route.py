"""`/metrics`: open, as Prometheus expects it, unless `auth.metrics` is `key`. It shows figures, no names of people."""

from __future__ import annotations

from typing import Protocol

from fastapi import APIRouter, Request
from fastapi.responses import Response

from memplane.api.asgi import header_map
from memplane.api.auth.identity import Authenticator, Role
from memplane.api.auth.status_key import StatusKey
from memplane.api.errors import Forbidden
from memplane.settings import AuthSettings

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Exposition(Protocol):
    async def render(self) -> bytes:
        """The text format of every metric, figures of the database included (cached for some seconds)."""
        ...


def metrics_router(
    exposition: Exposition, authenticator: Authenticator, status_key: StatusKey, auth: AuthSettings
) -> APIRouter:
    router = APIRouter(tags=["health"])

    @router.get(
        "/metrics",
        summary="Metrics in the Prometheus text format",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def metrics(request: Request) -> Response:
        if auth.metrics == "key":
            headers = header_map(request.scope)
            if not status_key.matches(headers):
                identity = await authenticator.authenticate(headers)
                if Role.PLATFORM not in identity.roles:
                    raise Forbidden("/metrics needs the status key or the role platform")
        return Response(await exposition.render(), media_type=CONTENT_TYPE)

    return router
