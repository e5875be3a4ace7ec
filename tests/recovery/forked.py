"""Processes that start in milliseconds: forked from a server that has imported what they need, and nothing else."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import signal
import threading
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

from experiments.task_process import Plan, run

_SECONDS = 60.0

_turn = threading.Lock()
"""multiprocessing is not safe here: whoever starts a process reads, in passing, how the others' have ended, and each
status can be read once. Two threads that read the same one at a time leave one of them with a made-up 255."""


def context() -> ForkServerContext:
    """The server starts with the first process and ends with this one."""
    chosen = multiprocessing.get_context("forkserver")
    chosen.set_forkserver_preload(["experiments.task_process"])
    return chosen


def _child(plan: Plan, outcome: str) -> None:
    document = asyncio.run(run(plan))
    Path(outcome).write_text(json.dumps(document), encoding="utf-8")


def run_in_new_process(plan: Plan) -> dict[str, Any] | None:
    """The outcome of a plan that ran in a process of its own; None when that process was killed. From any thread."""
    outcome = Path(plan["directory"]) / "outcome.json"
    outcome.unlink(missing_ok=True)
    process = context().Process(target=_child, args=(dict(plan), str(outcome)))
    with _turn:
        process.start()
    ended = wait([process.sentinel], _SECONDS)
    with _turn:
        if not ended:
            process.kill()
        process.join(_SECONDS)
        code = process.exitcode
        process.close()
    if not ended:
        raise AssertionError("the process did not end")
    if code == -signal.SIGKILL:
        return None
    assert code == 0, f"the process ended with {code}"
    document: dict[str, Any] = json.loads(outcome.read_text(encoding="utf-8"))
    return document
