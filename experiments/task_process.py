"""What runs in the process that gets killed: one entry on one task folder, described by a plan.

`python -m experiments.task_process PLAN.json` prints the entry's outcome as one JSON document. With `kill` in the plan
the process sends itself SIGKILL when that point (see memplane.recovery.probes) is reached for the given time.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from memplane import recovery
from memplane.errors import MemplaneError
from memplane.recovery import RecoveryStore
from memplane.runtime import Runtime, create_runtime
from memplane.signal import Signal
from memplane.workers import OpenAIChatProvider, create_context_worker, create_infer_worker, create_interaction_worker

Plan = Mapping[str, Any]
"""directory, id, service (origin), model ({baseUrl, name, keyVariable?}), entry (`run_retry` … or `decide`),
input (the entry's further input), options (its keyword arguments), kill ({point, occurrence}), trace (a path: the
points are listed there), killAfterMs (SIGKILL by the clock), abortAfterMs (the caller aborts)."""


class Points:
    """Counts points; lists them when asked to, kills the process at the chosen one."""

    def __init__(self, plan: Plan) -> None:
        self._kill = plan.get("kill")
        self._trace = plan.get("trace")
        self._reached: dict[str, int] = {}

    def __call__(self, point: str) -> None:
        self._reached[point] = self._reached.get(point, 0) + 1
        if self._trace is not None:
            with Path(self._trace).open("a", encoding="utf-8") as file:
                file.write(f"{point}\t{self._reached[point]}\n")
        if self._kill is not None and (point, self._reached[point]) == (self._kill["point"], self._kill["occurrence"]):
            kill_myself()


def kill_myself() -> None:
    """No handler, no flush, no goodbye."""
    os.kill(os.getpid(), signal.SIGKILL)


async def run(plan: Plan) -> dict[str, Any]:
    """The outcome: `{job, …}`, or `{error}` with the message of what was raised."""
    store = RecoveryStore(plan["directory"], plan["service"], probe=Points(plan))
    key = os.environ.get(plan["model"].get("keyVariable") or "")
    provider = OpenAIChatProvider(base_url=plan["model"]["baseUrl"], api_key=key)
    runtime = create_runtime(
        sandbox={"tools": [tool.name for tool in store.tools], "network": [store.origin, provider.origin]},
        workers=[
            create_context_worker(),
            create_infer_worker(providers={"openai": provider}),
            create_interaction_worker(tools=list(store.tools)),
        ],
    )
    try:
        return await _entry(plan, store, runtime)
    except MemplaneError as error:
        return {"error": str(error), "job": await store.job(plan["id"])}
    finally:
        await runtime.close()
        await provider.close()
        await store.close()


async def _entry(plan: Plan, store: RecoveryStore, runtime: Runtime) -> dict[str, Any]:
    name, loop = plan["entry"], asyncio.get_running_loop()
    if name == "decide":
        return {"job": await store.decide(plan["id"], **plan["options"])}
    caller = Signal()
    if plan.get("killAfterMs") is not None:
        loop.call_later(plan["killAfterMs"] / 1000, kill_myself)
    if plan.get("abortAfterMs") is not None:
        loop.call_later(plan["abortAfterMs"] / 1000, caller.abort)
    entry: Callable[..., Any] = getattr(recovery, name)
    given = {"id": plan["id"], "model": {"provider": "openai", "model": plan["model"]["name"]}}
    result = await entry(runtime, {**given, **plan.get("input", {})}, signal=caller, **plan.get("options", {}))
    return result if "job" in result else {"job": result}


def main() -> None:
    plan = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    sys.stdout.write(json.dumps(asyncio.run(run(plan))) + "\n")


if __name__ == "__main__":
    main()
