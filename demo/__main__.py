"""`python -m demo`: start the service on embedded servers, show it at work, leave it running until Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
import time
from pathlib import Path

from rich.console import Console

from demo.client import CallFailed
from demo.service import ServiceFailed, port_to_use, running
from demo.story import Story

FOLDER = Path(".memplane") / "demo"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("--data", type=Path, default=FOLDER, help="folder of the data, kept for the next run")
    parser.add_argument("--port", type=int, default=8080, help="port of the service; another one when it is taken")
    parser.add_argument("--once", action="store_true", help="end after the figures instead of serving on")
    arguments = parser.parse_args()
    data: Path = arguments.data
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    try:
        return asyncio.run(show(console, data, arguments.port, kept=(data / "postgres").exists(), once=arguments.once))
    except (ServiceFailed, CallFailed, TimeoutError) as error:
        console.print(f"[red]The demo failed:[/red] {error}", markup=True)
        return 1
    except KeyboardInterrupt:
        return 0


async def show(console: Console, folder: Path, port: int, *, kept: bool, once: bool) -> int:
    """The whole demo; returns the exit code."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    work = asyncio.create_task(_work(console, folder, port_to_use(port), None if once else stop, kept=kept))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({work, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not work.done():
        console.print("\nEnding the service; the data stays for the next run.")
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work
        return 0
    stopping.cancel()
    work.result()
    return 0


async def _work(console: Console, folder: Path, port: int, stop: asyncio.Event | None, *, kept: bool) -> None:
    """The story; then, when there is something to wait for, serve until then."""
    started = time.perf_counter()
    console.print("[bold]memplane[/bold]: PostgreSQL is the truth, Milvus Lite the index, all inside this folder.")
    async with contextlib.AsyncExitStack() as stack:
        with console.status("starting PostgreSQL, Milvus Lite, the service and its workers"):
            client = await stack.enter_async_context(running(folder, port))
        again = ", with the data of the last run" if kept else ""
        console.print(f"  Ready at {client.url} after {time.perf_counter() - started:.1f} s{again}.")
        await Story(client, console).run()
        if stop is not None:
            _farewell(console, client.url, folder)
            await stop.wait()


def _farewell(console: Console, url: str, folder: Path) -> None:
    console.print(
        f"\n[bold]The service runs on at {url}[/bold] (reference: {url}/docs, metrics: {url}/metrics). Try:\n\n"
        f"  curl -s {url}/v1/nodes/MEMORY.SEARCH -H 'X-Memory-User: reader' \\\n"
        '       -H \'Content-Type: application/json\' -d \'{"query": "list comprehension", "limit": 2}\'\n\n'
        f"Ctrl-C ends it; the data stays in {folder} for the next run.",
        markup=True,
    )


if __name__ == "__main__":
    raise SystemExit(main())
