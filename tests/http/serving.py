"""A real uvicorn on loopback around an application, in the test's own event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from starlette.types import ASGIApp

from memplane.api.server import Server, address, bind, make_server


@asynccontextmanager
async def serving(app: ASGIApp, **options: float) -> AsyncIterator[tuple[str, Server]]:
    """The URL of the running application, and its server; stopped in good order afterwards."""
    listener = bind("127.0.0.1", 0)
    server = make_server(app, **options)  # type: ignore[arg-type]
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await server.listening.wait()
        yield address(listener), server
    finally:
        server.stop()
        await task
        listener.close()


def client(url: str, key: str | None = None, user: str | None = None) -> httpx.AsyncClient:
    headers = {}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    if user is not None:
        headers["X-Memory-User"] = user
    return httpx.AsyncClient(base_url=url, headers=headers, timeout=20)
