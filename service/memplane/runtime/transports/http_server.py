"""Serving a runtime over HTTP from within its own event loop. Needs uvicorn (extra `http`)."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from memplane.errors import SettingsError
from memplane.runtime.transports.http_app import Receiver, create_http_app
from memplane.runtime.transports.protocol import DEFAULT_MAX_BODY_BYTES

if TYPE_CHECKING:
    import uvicorn

Application: TypeAlias = Callable[[Any, Any, Any], Awaitable[None]]
"""An ASGI application."""

DRAIN_SECONDS = 30
"""How long `close` waits for calls that are being answered."""


class HttpServer:
    """A running server. `url` is its origin, `http://host:port`."""

    def __init__(self, server: uvicorn.Server, serving: asyncio.Task[None], url: str) -> None:
        self.url = url
        self._server, self._serving = server, serving

    async def close(self) -> None:
        """Take no more connections, let running calls be answered, end. Idempotent."""
        self._server.should_exit = True
        await asyncio.shield(self._serving)


async def serve_http(
    runtime: Receiver,
    *,
    token: str,
    host: str = "127.0.0.1",
    port: int = 0,
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES,
) -> HttpServer:
    """Serve the HTTP transport's protocol; port 0 takes a free one.

    The token travels in clear text: beyond loopback put TLS in front. Raises `DefinitionError` on a blank token,
    `OSError` when the address cannot be bound, `SettingsError` without the extra `http`.
    """
    return await serve_app(create_http_app(runtime, token=token, max_body_bytes=max_body_bytes), host=host, port=port)


async def serve_app(app: Application, *, host: str = "127.0.0.1", port: int = 0) -> HttpServer:
    """Serve any ASGI application with the transport's limits on connections, within this event loop."""
    try:
        import uvicorn
    except ImportError:
        raise SettingsError("serve_http needs the extra `http`: pip install 'memplane[http]'") from None
    from memplane.runtime.transports.http_connections import HEAD_BYTES, BoundedConnection

    class Server(uvicorn.Server):
        """Leaves the process's signal handlers alone: the application decides when to close."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            started.set()

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    started = asyncio.Event()
    listening = _bind(host, port)
    config = uvicorn.Config(
        app,
        http=BoundedConnection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=DRAIN_SECONDS,
        h11_max_incomplete_event_size=HEAD_BYTES,
    )
    server = Server(config)
    serving = asyncio.get_running_loop().create_task(server.serve(sockets=[listening]))
    serving.add_done_callback(lambda _: started.set())
    await started.wait()
    if serving.done():
        listening.close()
        await serving
    bound_host, bound_port = listening.getsockname()[:2]
    shown = f"[{bound_host}]" if ":" in bound_host else bound_host
    return HttpServer(server, serving, f"http://{shown}:{bound_port}")


def _bind(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError:
        listening.close()
        raise
    return listening
