"""`/livez` and `/readyz` (design section 4)."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from memplane.api.plane import Health


class CheckModel(BaseModel):
    ok: bool
    detail: str = Field("", description="why it is not, or what is known about it")


class Readiness(BaseModel):
    ready: bool
    checks: dict[str, CheckModel] = Field(
        description="postgresql and schema decide readiness (with another store: store), the others are listed"
    )


class Liveness(BaseModel):
    live: bool


def health_router(health: Health) -> APIRouter:
    """The routes that the kubelet asks; open to everybody."""
    router = APIRouter(tags=["health"])

    @router.get("/livez", response_model=Liveness, summary="Whether the process answers")
    async def livez() -> JSONResponse:
        """Never looks at dependencies: a database that is away is no reason to restart this process."""
        return JSONResponse({"live": True})

    @router.get(
        "/readyz",
        response_model=Readiness,
        summary="Whether requests can be served, and which dependency is missing",
        responses={503: {"model": Readiness, "description": "The store is away, or its schema does not fit"}},
    )
    async def readyz() -> JSONResponse:
        checks = {name: {"ok": check.ok, "detail": check.detail} for name, check in (await health.checks()).items()}
        ready = all(name in checks and checks[name]["ok"] for name in health.decisive)
        return JSONResponse({"ready": ready, "checks": checks}, 200 if ready else 503)

    return router
