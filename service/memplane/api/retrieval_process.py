"""The process of `memplane retrieval`: the RETRIEVAL worker alone, for services whose search plugin is `retrieval`.

It answers `POST /ditto/invoke` to whoever has its token, and /livez, /readyz and /metrics to anybody.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from fastapi.responses import JSONResponse, Response
from prometheus_client import CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from memplane.api.connections import connect
from memplane.api.metrics_route import CONTENT_TYPE
from memplane.api.supervise import Supervisor
from memplane.errors import MemplaneError, SettingsError
from memplane.plugins.registry import create_search
from memplane.plugins.search.delegation import WORKER_ADDRESS, MemoryTargets
from memplane.plugins.search.retrieval import read_token
from memplane.retrieval import create_retrieval_worker
from memplane.runtime import InvokeApp, create_runtime
from memplane.runtime.transports.http_app import Receiver, only_header
from memplane.runtime.transports.protocol import PATH, authorized, token_digest
from memplane.settings import Settings
from memplane.signal import Signal

log = logging.getLogger(__name__)

BRING_UP = "startup"


class RetrievalProcess:
    """Starts while its servers are away and heals by itself. Raises `SettingsError` for what can never work."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.registry = CollectorRegistry()
        self.supervisor = Supervisor()
        chosen = settings.retrieval.search
        if chosen.plugin == "retrieval":
            raise SettingsError("retrieval.search.plugin must search by itself; 'retrieval' would delegate again")
        self._token()
        self._connections = connect(settings, application_name="memplane-retrieval")
        self._search = create_search(chosen.plugin, chosen.options, self._connections.resources())
        self._runtime = create_runtime(host_id=WORKER_ADDRESS["hostId"], process_id=WORKER_ADDRESS["processId"])
        worker = create_retrieval_worker(
            providers=MemoryTargets(self._search), defaults={"searchLimit": settings.defaults.search_limit}
        )
        self._runtime.register(worker, id=WORKER_ADDRESS["workerId"])
        self._ready = False
        invoke = InvokeApp(self._authorize, max_body_bytes=settings.retrieval.max_body_bytes)
        self.app: ASGIApp = _routed(invoke, self._probes())

    async def start(self) -> None:
        """Begin; returns at once."""
        self.supervisor.start(BRING_UP, self._bring_up)

    async def _bring_up(self, signal: Signal) -> None:
        await self._connections.open_truth()
        await self._search.start()
        self._ready = True
        log.info("the retrieval process is ready")

    @property
    def refusal(self) -> MemplaneError | None:
        """Why it will never work, once that is known."""
        part = self.supervisor.parts.get(BRING_UP)
        return None if part is None else part.refusal

    async def close(self) -> None:
        """Let running searches end, then close. Idempotent."""
        await self.supervisor.stop(self.settings.service.shutdown_seconds)
        self._ready = False
        await self._runtime.close()
        await self._search.close()
        await self._connections.close()

    def _token(self) -> bytes:
        """What the token is compared by; a token file is read for every call, so that a rotation needs no restart."""
        token = read_token(self.settings.retrieval.token, self.settings.retrieval.token_file, "retrieval")
        if not token:
            raise SettingsError("retrieval.token must not be empty")
        return token_digest(token)

    async def _authorize(self, headers: Iterable[tuple[bytes, bytes]]) -> Receiver | None:
        try:
            expected = self._token()
        except SettingsError as error:
            log.warning("%s", error)
            return None
        return self._runtime if authorized(only_header(headers, b"authorization"), expected) else None

    def _probes(self) -> Starlette:
        async def livez(_: Request) -> Response:
            return JSONResponse({"live": True})

        async def readyz(_: Request) -> Response:
            part = self.supervisor.parts.get(BRING_UP)
            detail = part.check.detail if part is not None else "starting"
            check = {"ok": self._ready, "detail": detail}
            return JSONResponse({"ready": self._ready, "checks": {BRING_UP: check}}, 200 if self._ready else 503)

        async def metrics(_: Request) -> Response:
            return Response(generate_latest(self.registry), media_type=CONTENT_TYPE)

        return Starlette(routes=[Route("/livez", livez), Route("/readyz", readyz), Route("/metrics", metrics)])


def _routed(invoke: ASGIApp, probes: ASGIApp) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await (invoke if scope.get("path") == PATH else probes)(scope, receive, send)

    return app
