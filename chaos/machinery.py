"""Everything that runs beneath the clients, each part with a name, and each can be killed, paused and started again.

Servers come from the tests' stack, in a folder of the run's own, so that nobody else's are hurt. The workers' and
services' clocks are wrong by hours in either direction (libfaketime): only the database's time may matter.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tests.stack import Stack, milvus, neo4j, postgres
from tests.stack.debian import file_of
from tests.stack.model import Server
from tests.stack.process import end_group

GRACE_SECONDS = 40.0


class Part(Protocol):
    """A server or a process of memplane."""

    name: str

    def kill(self) -> None:
        """SIGKILL for the whole group."""
        ...

    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def start(self) -> None:
        """Start it again where it was; returns when it answers (a server) or was started (a process)."""
        ...

    def restart(self) -> None:
        """End it in good order, then start it."""
        ...

    def stop(self) -> None: ...


def _send(group: int | None, number: signal.Signals) -> None:
    if group is not None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, number)


@dataclass
class ServerPart:
    """PostgreSQL, Milvus or Neo4j."""

    name: str
    server: Server
    again: Callable[[Server], Server]

    def kill(self) -> None:
        assert self.server.group is not None
        end_group(self.server.group, first=signal.SIGKILL)

    def pause(self) -> None:
        _send(self.server.group, signal.SIGSTOP)

    def resume(self) -> None:
        _send(self.server.group, signal.SIGCONT)

    def start(self) -> None:
        self.server = self.again(self.server)

    def restart(self) -> None:
        self.stop()
        self.start()

    def stop(self) -> None:
        self.resume()
        assert self.server.group is not None
        # SIGINT is PostgreSQL's "fast" shutdown: SIGTERM would wait for the clients.
        first = signal.SIGINT if self.name == "postgres" else signal.SIGTERM
        end_group(self.server.group, first=first)


@dataclass
class ProcessPart:
    """A `memplane` command. Its log is appended to over all its lives."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    expected_end: bool = True
    """Whether somebody of this run ended it."""
    died: list[int] = field(default_factory=list)
    """Exit codes of ends that nobody here had caused."""

    def start(self) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("MEMPLANE_")}
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "memplane", *self.command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # A process that crashes in native code leaves its stacks in the log.
                env={**clean, "PYTHONFAULTHANDLER": "1", **self.environment},
                start_new_session=True,
            )
        self.expected_end = False

    def kill(self) -> None:
        self._end(signal.SIGKILL, 10)

    def pause(self) -> None:
        if self.process is not None:
            _send(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        if self.process is not None:
            _send(self.process.pid, signal.SIGCONT)

    def restart(self) -> None:
        self.stop()
        self.start()

    def stop(self) -> None:
        self.resume()
        self._end(signal.SIGTERM, GRACE_SECONDS)

    def check(self) -> bool:
        """Is it running? An end that nobody caused is noted once."""
        running = self.process is not None and self.process.poll() is None
        if not running and not self.expected_end and self.process is not None:
            self.died.append(self.process.returncode)
            self.expected_end = True
        return running

    def _end(self, number: signal.Signals, patience: float) -> None:
        if not self.check():
            return
        assert self.process is not None
        self.expected_end = True
        _send(self.process.pid, number)
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            _send(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.died.append(-signal.SIGKILL)


def start_servers(folder: Path) -> tuple[Stack, dict[str, ServerPart]]:
    """Empty servers of this run's own."""
    with ThreadPoolExecutor(3) as pool:
        starting = {
            kind.__name__.rpartition(".")[2]: pool.submit(kind.start, folder) for kind in (postgres, milvus, neo4j)
        }
        servers = {name: started.result() for name, started in starting.items()}
    again = {"postgres": postgres.start_again, "milvus": milvus.start_again, "neo4j": neo4j.start_again}
    parts = {name: ServerPart(name, server, again[name]) for name, server in servers.items()}
    return Stack(**servers), parts


def skewed(seconds: int) -> dict[str, str]:
    """The environment of a process whose wall clock is wrong by so many seconds; its monotonic clock is right.

    Raises `StackError` when libfaketime cannot be fetched.
    """
    library = file_of("libfaketime", "usr/lib/*/faketime/libfaketimeMT.so.1")
    return {"LD_PRELOAD": str(library), "FAKETIME": f"{seconds:+d}", "DONT_FAKE_MONOTONIC": "1"}


def stop_all(parts: Sequence[Part]) -> None:
    """End everything, however it is."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda part: part.stop(), parts))


def until(condition: Callable[[], bool], seconds: float, what: str) -> float:
    """Wait for it; returns the seconds it took. Raises `TimeoutError` that says what did not happen."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            raise TimeoutError(f"{what} did not happen within {seconds:.0f} s")
        time.sleep(1)
    return time.monotonic() - began
