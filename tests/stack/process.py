"""Starting a server in a process group of its own and ending the whole group."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.stack.model import Server, StackError

_children: dict[int, subprocess.Popen[bytes]] = {}
"""What this process started, by group: servers outlive the function that starts them, and the ended are reaped."""


def free_port() -> int:
    """A TCP port of the loopback interface that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def cache_folder(name: str) -> Path:
    """A folder for what is fetched or unpacked once and outlives this tree."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(root) / "memplane" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def spawn(
    command: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start a server detached from the terminal; its output goes to `log`. Its pid is its process group."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=cwd,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
    _children[process.pid] = process
    return process


def wait_ready(
    name: str, process: subprocess.Popen[bytes] | None, probe: Callable[[], object], *, seconds: float, log: Path
) -> None:
    """Call `probe` until it no longer raises. Raises `StackError` when the server ends or is too slow, and ends it."""
    end = time.monotonic() + seconds
    while True:
        try:
            probe()
        except Exception as error:  # any driver's error means "not yet"; the last one is told
            if process is not None and process.poll() is not None:
                raise StackError(f"{name} ended with {process.returncode}; see {log}") from error
            if time.monotonic() > end:
                if process is not None:
                    end_group(process.pid, first=signal.SIGKILL)
                raise StackError(f"{name} is not ready after {seconds:.0f} s ({error}); see {log}") from error
            time.sleep(0.25)
        else:
            return


def answers(server: Server) -> bool:
    """Does anything accept connections at this address?"""
    try:
        with socket.create_connection((server.host, server.port), timeout=2):
            return True
    except OSError:
        return False


def group_alive(group: int) -> bool:
    """Has the group a process that runs? A zombie, left where nobody reaps, does not count."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] not in "ZX":
            return True
    return False


def end_group(group: int, *, seconds: float = 20, first: signal.Signals = signal.SIGTERM) -> None:
    """End every process of the group: politely, then by force."""
    for number, patience in ((first, seconds), (signal.SIGKILL, 5.0)):
        try:
            os.killpg(group, number)
        except ProcessLookupError:
            break
        end = time.monotonic() + patience
        while group_alive(group) and time.monotonic() < end:
            time.sleep(0.1)
        if not group_alive(group):
            break
    if (child := _children.pop(group, None)) is not None:
        child.wait()
