"""uvicorn as this service wants it: bounded heads, slow clients cut off, a stop that finishes what was begun."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from memplane.api.joined_writes import JoinedWrites
from memplane.errors import SettingsError


class BoundedProtocol(H11Protocol):
    """h11 with answers in one packet, and a limit on the time in which a client must have sent a request's head."""

    head_timeout = 15.0
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._joined = JoinedWrites(transport, self.loop)
        super().connection_made(self._joined)  # type: ignore[arg-type] # it has whatever a transport has
        self._start_head_timer()

    def on_response_complete(self) -> None:
        self._joined.flush()
        super().on_response_complete()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_head_timer()
        elif self._head_timer is None:
            # The first bytes of a next request: idle time before them is the keep-alive timer's.
            self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        super().connection_lost(exc)

    def _start_head_timer(self) -> None:
        self._head_timer = self.loop.call_later(self.head_timeout, self._cut_off)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _cut_off(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self.transport.close()


class Server(uvicorn.Server):
    """A uvicorn server whose owner handles signals and calls `stop()`. `listening` is set once it answers."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def stop(self) -> None:
        """Stop accepting, finish what is in flight, end `serve()`. Idempotent."""
        self.should_exit = True


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises `SettingsError` when the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named, because asyncio turns Nagle's algorithm off only for sockets that say they are TCP: 40 ms an answer.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host.strip("[]"), port))
    except OSError as error:
        listener.close()
        raise SettingsError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    listener.set_inheritable(True)
    return listener


def address(listener: socket.socket) -> str:
    """The URL at which a bound socket is reached."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def make_server(
    app: ASGIApp,
    *,
    keep_alive: float = 65,
    max_header_bytes: int = 32 * 2**10,
    head_timeout: float = 15,
    shutdown_seconds: float = 25,
) -> Server:
    """A server for `serve(sockets=[bind(…)])`. Lifespan is off: `compose.py` starts and stops the parts."""
    protocol = type("ConfiguredProtocol", (BoundedProtocol,), {"head_timeout": head_timeout})
    config = uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=max(1, round(keep_alive)),
        timeout_graceful_shutdown=max(1, round(shutdown_seconds)),
        h11_max_incomplete_event_size=max_header_bytes,
    )
    return Server(config)
