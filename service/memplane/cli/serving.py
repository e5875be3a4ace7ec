"""Running a service process until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Iterator

from memplane.api.compose import BRING_UP, ServiceProcess
from memplane.api.server import Server, address, bind, make_server

OnListening = Callable[[str], Awaitable[None]]


async def serve_until_stopped(process: ServiceProcess, on_listening: OnListening | None = None) -> None:
    """Listen and serve until SIGTERM or SIGINT; then finish what is in flight and close everything.

    `on_listening` gets the URL once the socket is open; it runs beside the server. A second signal ends at once.
    Raises the refusal when the database belongs to another backend.
    """
    settings = process.settings.service
    listener = bind(settings.host, settings.port)
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
                beside.append(asyncio.create_task(_run(on_listening, address(listener))))
            await server.serve(sockets=[listener])
    finally:
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        listener.close()
        await process.close()
    refusal = process.supervisor.parts[BRING_UP].refusal
    if refusal is not None:
        raise refusal


async def _run(on_listening: OnListening, url: str) -> None:
    await on_listening(url)


async def _stop_when_refused(process: ServiceProcess, server: Server) -> None:
    """A service that can never serve ends; a projection that is refused is only listed in /readyz."""
    startup = process.supervisor.parts[BRING_UP]
    await startup.finished.wait()
    if startup.refusal is not None:
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
