"""Running a process until it is told to stop: its server, its signals, its end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Iterator
from typing import Protocol

from starlette.types import ASGIApp

from memplane.api.server import Server, address, bind, make_server
from memplane.api.supervise import Supervisor
from memplane.errors import MemplaneError
from memplane.settings import Settings

OnListening = Callable[[str], Awaitable[None]]


class Process(Protocol):
    """`ServiceProcess` and `WorkerProcess`."""

    settings: Settings
    supervisor: Supervisor
    app: ASGIApp

    async def start(self) -> None: ...
    async def close(self) -> None: ...
    @property
    def refusal(self) -> MemplaneError | None: ...


async def serve_until_stopped(process: Process, host: str, port: int, on_listening: OnListening | None = None) -> None:
    """Listen and serve until SIGTERM or SIGINT; then finish what is in flight and close everything.

    `on_listening` gets the URL once the service answers; it runs beside the server. A second signal does not wait for
    what is in flight. Raises the process's refusal when it can never work.
    """
    settings = process.settings.service
    listener = bind(host, port)
    server = make_server(
        process.app,
        keep_alive=settings.keep_alive,
        max_header_bytes=settings.max_header_bytes,
        head_timeout=settings.head_timeout,
        shutdown_seconds=settings.shutdown_seconds,
    )
    beside: list[asyncio.Task[None]] = []
    try:
        await process.start()
        with stopping_on_signals(server):
            beside.append(asyncio.create_task(_stop_when_refused(process, server)))
            if on_listening is not None:
                beside.append(asyncio.create_task(_tell(server, on_listening, address(listener))))
            await server.serve(sockets=[listener])
    finally:
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        listener.close()
        await process.close()
    if process.refusal is not None:
        raise process.refusal


async def _tell(server: Server, on_listening: OnListening, url: str) -> None:
    await server.listening.wait()
    await on_listening(url)


async def _stop_when_refused(process: Process, server: Server) -> None:
    """What can never work ends; in a service, a refused projection is only listed in /readyz."""
    while process.refusal is None:
        process.supervisor.refused.clear()
        await process.supervisor.refused.wait()
    server.stop()


@contextlib.contextmanager
def stopping_on_signals(server: Server) -> Iterator[None]:
    """SIGTERM and SIGINT stop the server, a second one without waiting for what is in flight."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        if server.should_exit:
            server.force_exit = True
        server.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
