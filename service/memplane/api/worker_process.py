"""The process of `memplane worker TARGET`: one outbox worker, and a small server for its metrics and liveness."""

from __future__ import annotations

import asyncio

from fastapi.responses import JSONResponse, Response
from prometheus_client import CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp

from memplane.api.connections import connect
from memplane.api.going_live import GoingLive
from memplane.api.metrics_route import CONTENT_TYPE
from memplane.api.supervise import Supervisor
from memplane.errors import MemplaneError
from memplane.outbox.events import Target
from memplane.outbox.metrics import Metrics
from memplane.settings import Settings
from memplane.signal import Signal
from memplane.tracing import Tracer, start_tracer


class WorkerProcess:
    """Works through the events of one target until closed. Waits for servers that are away; a refusal ends it."""

    def __init__(self, settings: Settings, target: Target, tracer: Tracer | None = None) -> None:
        self.settings = settings
        self.target = target
        self.registry = CollectorRegistry()
        self.supervisor = Supervisor()
        self._metrics = Metrics(self.registry)
        self._tracer = tracer or start_tracer(settings.tracing, f"{target.value}-worker")
        self._connections = connect(settings, application_name=f"memplane-worker-{target.value}")
        # A missing address is told at once, not by a worker that waits.
        self._connections.projection(target)
        self.app: ASGIApp = self._probes()

    async def start(self) -> None:
        """Begin; returns at once."""
        self.supervisor.start(self.target.value, self._run)
        going_live = GoingLive(self._connections, self.target)
        if going_live.needed:
            self.supervisor.start("going_live", going_live.run)

    async def _run(self, signal: Signal) -> None:
        await self._connections.open_truth()
        await self._connections.work(self._connections.projection(self.target), signal, self._metrics, self._tracer)

    @property
    def refusal(self) -> MemplaneError | None:
        """Why it will never work, once that is known."""
        part = self.supervisor.parts.get(self.target.value)
        return None if part is None else part.refusal

    async def close(self) -> None:
        """Drain what is in flight, then close. Idempotent."""
        await self.supervisor.stop(self.settings.outbox.drain_seconds + 5)
        await self._connections.close()
        if self._tracer is not None:
            await asyncio.to_thread(self._tracer.close)

    def _probes(self) -> Starlette:
        async def livez(_: Request) -> Response:
            return JSONResponse({"live": True})

        async def readyz(_: Request) -> Response:
            part = self.supervisor.parts.get(self.target.value)
            ready = part is not None and part.check.ok
            detail = part.check.detail if part is not None else "starting"
            check = {"ok": ready, "detail": detail}
            return JSONResponse({"ready": ready, "checks": {self.target.value: check}}, 200 if ready else 503)

        async def metrics(_: Request) -> Response:
            return Response(generate_latest(self.registry), media_type=CONTENT_TYPE)

        return Starlette(routes=[Route("/livez", livez), Route("/readyz", readyz), Route("/metrics", metrics)])
