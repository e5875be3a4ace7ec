"""The operator's own HTTP: /livez, /readyz and /metrics."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest


async def serve(port: int, registry: CollectorRegistry, alive: Callable[[], bool]) -> web.AppRunner:
    """Start the server; `alive` decides /livez. A candidate that does not lead is alive and ready."""

    async def livez(_: web.Request) -> web.Response:
        ok = alive()
        return web.Response(status=200 if ok else 503, text="ok\n" if ok else "the watch is stalled\n")

    async def readyz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.add_routes([web.get("/livez", livez), web.get("/readyz", readyz), web.get("/metrics", metrics)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", port).start()  # noqa: S104 - the pod's own address, reached by the kubelet
    return runner
