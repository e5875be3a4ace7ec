"""`memplane dev` as a child process: started, waited for, ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

from demo.client import Client

START_SECONDS = 90
END_SECONDS = 30


class ServiceFailed(Exception):  # noqa: N818 - names what happened
    """The service did not come up; the text holds the end of its log."""


def port_to_use(preferred: int) -> int:
    """The preferred port when nobody listens there, else a free one."""
    for port in (preferred, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return int(probe.getsockname()[1])
    raise ServiceFailed("no TCP port can be had on 127.0.0.1")


@contextlib.asynccontextmanager
async def running(folder: Path, port: int) -> AsyncIterator[Client]:
    """The service on the data in `folder`; ended, with its servers, when the context is left.

    It runs in a session of its own, so that Ctrl-C reaches only the demo, which then ends it in order.
    """
    process, log = _start(folder, port)
    client = Client(f"http://127.0.0.1:{port}")
    try:
        await _ready(process, client, log)
        yield client
    finally:
        await client.close()
        await asyncio.to_thread(_end, process)


def _start(folder: Path, port: int) -> tuple[subprocess.Popen[bytes], Path]:
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "service.log"
    arguments = ["dev", "--data", str(folder), "--port", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", "from memplane.cli import main; main()", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={"MEMPLANE_LOG__LEVEL": "WARNING", **os.environ},
            start_new_session=True,
        )
    return process, log


def _tail(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-3000:]


async def _ready(process: subprocess.Popen[bytes], client: Client, log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while not await client.ready() or await client.projections_away():
        if process.poll() is not None:
            raise ServiceFailed(f"memplane dev ended with {process.returncode}:\n{_tail(log)}")
        if time.monotonic() > end:
            raise ServiceFailed(f"memplane dev is not ready after {START_SECONDS} s; its log is {log}")
        await asyncio.sleep(0.1)


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, so that it stops its servers; SIGKILL only if it does not."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
