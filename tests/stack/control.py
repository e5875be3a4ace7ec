"""Starting, sharing and ending the stack. Source: CONTRIBUTING, "The test stack".

Two locks keep several runs from hurting each other: `start.lock` admits one starter, and every user holds
`users.lock` shared. A stack that pytest started is ended by the last pytest that uses it; one that
`python -m tests.stack up` started is ended by `down` alone.
"""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tests.stack import milvus, neo4j, postgres
from tests.stack.model import Server, Stack, StackError
from tests.stack.process import answers, end_group, group_alive

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".memplane" / "test-stack"
FILE = FOLDER / "stack.json"
OVERRIDE_VARIABLE = "MEMPLANE_TEST_STACK"
KEEP_VARIABLE = "MEMPLANE_KEEP_STACK"

_STARTERS = {"postgres": postgres.start, "milvus": milvus.start, "neo4j": neo4j.start}


def _override() -> Stack | None:
    name = os.environ.get(OVERRIDE_VARIABLE)
    if not name:
        return None
    stack = Stack.load(Path(name))
    if stack is None:
        raise StackError(f"{OVERRIDE_VARIABLE} names a file that does not exist")
    return stack


@contextmanager
def _starting() -> Iterator[None]:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "start.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def up(*, starter: str = "command") -> Stack:
    """Start what does not run and return the addresses. Idempotent; a live stack is reused."""
    if (own := _override()) is not None:
        return own
    with _starting():
        stack = Stack.load(FILE)
        if stack is not None and all(alive(server) for server in _servers(stack).values()):
            if starter == "command" and stack.starter != "command":
                stack = stack.model_copy(update={"starter": "command"})
                stack.save(FILE)
            return stack
        if stack is not None:
            _end(stack)
            starter = "command" if stack.starter == "command" else starter
        stack = _start(starter)
        stack.save(FILE)
        return stack


def _start(starter: str) -> Stack:
    servers: dict[str, Server] = {}
    failure: StackError | None = None
    with ThreadPoolExecutor(len(_STARTERS)) as pool:
        for name, started in {name: pool.submit(start, FOLDER) for name, start in _STARTERS.items()}.items():
            try:
                servers[name] = started.result()
            except StackError as error:
                failure = error
    if failure is not None:
        for server in servers.values():
            _end_server(server)
        raise failure
    return Stack(starter=starter, **servers)


def _servers(stack: Stack) -> dict[str, Server]:
    return {"postgres": stack.postgres, "milvus": stack.milvus, "neo4j": stack.neo4j}


def alive(server: Server) -> bool:
    """Is the server's group there and does its port answer?"""
    return (server.group is None or group_alive(server.group)) and answers(server)


def _end_server(server: Server, *, first: signal.Signals = signal.SIGTERM) -> None:
    if server.group is not None:
        end_group(server.group, first=first)


def _end(stack: Stack) -> None:
    FILE.unlink(missing_ok=True)
    # SIGINT is PostgreSQL's "fast" shutdown: SIGTERM would wait for the clients.
    _end_server(stack.postgres, first=signal.SIGINT)
    # Nothing of these two is kept, so nothing is gained by waiting for them.
    _end_server(stack.milvus, first=signal.SIGKILL)
    _end_server(stack.neo4j, first=signal.SIGKILL)


def down() -> bool:
    """End the stack. False when none was running."""
    with _starting():
        stack = Stack.load(FILE)
        if stack is None:
            return False
        _end(stack)
        return True


def status() -> tuple[Stack | None, dict[str, bool]]:
    """The recorded stack and which of its servers answer."""
    stack = _override() or Stack.load(FILE)
    return stack, {name: alive(server) for name, server in _servers(stack).items()} if stack else {}


def join() -> tuple[Stack, IO[str]]:
    """Use the stack from a pytest run, starting it if needed. Hand the second value to `leave`."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    using = (FOLDER / "users.lock").open("a")
    try:
        fcntl.flock(using, fcntl.LOCK_SH)
        return up(starter="pytest"), using
    except BaseException:
        using.close()
        raise


def leave(using: IO[str]) -> None:
    """Stop using the stack; ends it when pytest had started it and nobody else uses it."""
    with using:
        if os.environ.get(KEEP_VARIABLE) == "1" or os.environ.get(OVERRIDE_VARIABLE):
            return
        try:
            fcntl.flock(using, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        stack = Stack.load(FILE)
        if stack is not None and stack.starter == "pytest":
            down()
