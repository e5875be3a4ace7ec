"""Running loops. Source: L-01 … L-12, K-05.

Errors of graphs and callbacks pass through unchanged; nothing is retried. The limit counts every graph that starts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from memplane.runtime.checkpoint import Save, call, check_options, checkpoint_state, restore_state
from memplane.runtime.errors import CheckpointError, DefinitionError, LoopLimitReached
from memplane.runtime.graph import Graph, arity
from memplane.runtime.loop import StateLoop
from memplane.signal import Signal

OnGraph = Callable[[Mapping[str, Any]], Any]
"""Told of `{loopId, iteration, graphId, nodes, status}`; `iteration` counts from 0, `nodes` lists the graph's node ids,
`status` is started, then completed or failed. What it raises ends the loop."""


class RunGraph:
    """How a loop runs one graph: (graph, input, signal) → outputs. Reports each run to `on_graph`."""

    def __init__(
        self,
        loop_id: str,
        run: Callable[[Graph, Any, Signal | None], Awaitable[Mapping[str, Any]]],
        on_graph: OnGraph | None,
    ) -> None:
        self._loop_id, self._run, self._on_graph = loop_id, run, on_graph

    async def __call__(self, iteration: int, plan: Graph, input: Any, signal: Signal | None) -> Mapping[str, Any]:  # noqa: A002
        await self._tell(iteration, plan, "started")
        try:
            outputs = await self._run(plan, input, signal)
        except BaseException:
            # Cancellation is a failed run too for whoever watches; nothing is swallowed.
            await self._tell(iteration, plan, "failed")
            raise
        await self._tell(iteration, plan, "completed")
        return outputs

    async def _tell(self, iteration: int, plan: Graph, status: str) -> None:
        if self._on_graph is None:
            return
        event = {
            "loopId": self._loop_id,
            "iteration": iteration,
            "graphId": plan.id,
            "nodes": tuple(node.id for node in plan.nodes),
            "status": status,
        }
        await call(self._on_graph, event)


@dataclass(slots=True)
class StateCheckpoint:
    """Saves a state loop after each iteration, `{loop, iteration, state, completed}`, under the caller's id."""

    id: str
    version: str
    save: Save
    loop_id: str
    saved: Mapping[str, Any] | None

    @classmethod
    def of(cls, loop_id: str, options: Mapping[str, Any]) -> StateCheckpoint:
        """Check `{id, version, save, resume?}`. Raises `DefinitionError`."""
        version, save = check_options(options, {"id", "version", "save", "resume"})
        checkpoint_id = options.get("id")
        if not isinstance(checkpoint_id, str) or not checkpoint_id:
            raise DefinitionError("Checkpoint id must be a nonempty string")
        return cls(checkpoint_id, version, save, loop_id, options.get("resume"))

    def restore(self, state: Any) -> tuple[int, Any, bool]:
        """(iterations done, state, completed): what was saved, or the start. Raises `CheckpointError`."""
        if self.saved is None:
            return 0, state, False
        document = restore_state(self.saved, self.id, self.version)
        if not isinstance(document, dict) or document.get("loop") != self.loop_id:
            raise CheckpointError("Loop checkpoint is incompatible with this loop")
        return document["iteration"], document["state"], document["completed"]

    async def store(self, iteration: int, state: Any, completed: bool) -> None:
        document = {"loop": self.loop_id, "iteration": iteration, "state": state, "completed": completed}
        await call(self.save, checkpoint_state(self.id, self.version, document))


async def run_state_loop(
    definition: StateLoop,
    state: Any,
    run: RunGraph,
    *,
    max_iterations: int,
    signal: Signal | None,
    checkpoint: StateCheckpoint | None,
) -> Any:
    """The first state that satisfied `done`. Raises `LoopLimitReached` after `max_iterations` without one."""
    done_iterations, state, completed = checkpoint.restore(state) if checkpoint else (0, state, False)
    if completed:
        return state
    for iteration in range(done_iterations, max_iterations):
        if signal is not None:
            signal.raise_if_aborted()
        state, completed = await _iterate(definition, state, run, iteration, signal)
        if checkpoint is not None:
            await checkpoint.store(iteration + 1, state, completed)
        if completed:
            return state
    raise LoopLimitReached("Loop iteration limit reached")


async def _iterate(
    definition: StateLoop, state: Any, run: RunGraph, iteration: int, signal: Signal | None
) -> tuple[Any, bool]:
    plan = definition.graph if isinstance(definition.graph, Graph) else await call(definition.graph, state)
    if not isinstance(plan, Graph):
        raise DefinitionError("A Loop selector must return a graph")
    outputs = await run(iteration, plan, await call(definition.bind, state), signal)
    state = await call_with_outputs(definition.update, state, outputs)
    return state, bool(await call_with_outputs(definition.done, state, outputs))


async def call_with_outputs(callback: Callable[..., Any], state: Any, outputs: Mapping[str, Any]) -> Any:
    """Call with (state, outputs), or with (state) when it takes no more."""
    return await (call(callback, state, outputs) if arity(callback) >= 2 else call(callback, state))
