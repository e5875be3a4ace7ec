"""Processes that start in milliseconds: forked from a server that has imported what they need, and nothing else."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import signal
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

from experiments.task_process import Plan, run

_SECONDS = 60.0


def context() -> ForkServerContext:
    """The server starts with the first process and ends with this one."""
    chosen = multiprocessing.get_context("forkserver")
    chosen.set_forkserver_preload(["experiments.task_process"])
    return chosen


def _child(plan: Plan, outcome: str) -> None:
    document = asyncio.run(run(plan))
    Path(outcome).write_text(json.dumps(document), encoding="utf-8")


LOST = 255
"""What multiprocessing reports when the fork server could not tell how a process ended."""


class StatusLost(Exception):
    """It is not known how the process ended: the trial proves nothing and is made again."""


def run_in_new_process(plan: Plan) -> dict[str, Any] | None:
    """The outcome of a plan that ran in a process of its own; None when that process was killed."""
    outcome = Path(plan["directory"]) / "outcome.json"
    outcome.unlink(missing_ok=True)
    process = context().Process(target=_child, args=(dict(plan), str(outcome)))
    process.start()
    process.join(_SECONDS)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise AssertionError("the process did not end")
    code = process.exitcode
    process.close()
    if code == -signal.SIGKILL:
        return None
    if code == LOST:
        raise StatusLost
    assert code == 0, f"the process ended with {code}"
    document: dict[str, Any] = json.loads(outcome.read_text(encoding="utf-8"))
    return document
