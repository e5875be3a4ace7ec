"""Graphs and loops on a runtime's workers: which worker each node is bound to, and the configured limits.

`runtime.py` accepts and drains; `graph_run.py`, `loop_run.py` and `plan_run.py` know nothing of workers and only call
what they are given.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memplane.runtime.calls import Call, Calls
from memplane.runtime.checkpoint import GraphCheckpoint
from memplane.runtime.context import Execution
from memplane.runtime.errors import DefinitionError
from memplane.runtime.graph import Graph, GraphNode
from memplane.runtime.graph_run import NodeCall, check_graph_concurrency, run_graph
from memplane.runtime.loop import DEFAULT_MAX_ITERATIONS, PlanLoop, StateLoop
from memplane.runtime.loop_run import OnGraph, RunGraph, StateCheckpoint, run_state_loop
from memplane.runtime.plan_run import run_plan
from memplane.runtime.registry import Registry
from memplane.signal import Signal

Bindings = Mapping[str, str]
"""Worker id by graph node id."""


class Plans:
    """Runs plans. `limits`: the configuration's `graphConcurrency` and `loopMaxIterations`, where it sets them."""

    def __init__(self, registry: Registry, calls: Calls, limits: Mapping[str, int]) -> None:
        self._registry = registry
        self._calls = calls
        self._concurrency = limits.get("graphConcurrency")
        self._max_iterations = limits.get("loopMaxIterations")

    async def run_graph(
        self,
        plan: Graph,
        input: Any,  # noqa: A002
        bindings: Bindings,
        *,
        signal: Signal | None,
        concurrency: int | None = None,
        checkpoint: Mapping[str, Any] | None = None,
    ) -> Mapping[str, Any]:
        """See `Runtime.run`."""
        _check_graph(plan)
        limit = check_graph_concurrency(concurrency)
        saver = None if checkpoint is None else GraphCheckpoint.of(plan, input, checkpoint)
        return await run_graph(
            plan,
            input,
            self._node_caller(plan, bindings),
            signal=signal,
            concurrency=limit if limit is not None else self._concurrency,
            checkpoint=saver,
        )

    async def run_loop(
        self,
        definition: StateLoop | PlanLoop,
        state: Any,
        bindings: Mapping[str, Bindings],
        *,
        signal: Signal | None,
        state_checkpoint: Mapping[str, Any] | None,
        on_graph: OnGraph | None,
    ) -> Any:
        """See `Runtime.loop`."""
        if not isinstance(definition, StateLoop | PlanLoop):
            raise DefinitionError("Only the result of loop can be looped")
        limit = definition.max_iterations or self._max_iterations or DEFAULT_MAX_ITERATIONS

        async def run_one(plan: Graph, input: Any, signal: Signal | None) -> Mapping[str, Any]:  # noqa: A002
            return await self.run_graph(plan, input, bindings.get(plan.id, {}), signal=signal)

        run = RunGraph(definition.id, run_one, on_graph)
        if isinstance(definition, PlanLoop):
            if state_checkpoint is not None:
                raise DefinitionError("A stateCheckpoint is unsupported for plan Loops")
            return await run_plan(definition, state, run, max_iterations=limit, signal=signal)
        saver = None if state_checkpoint is None else StateCheckpoint.of(definition.id, state_checkpoint)
        return await run_state_loop(definition, state, run, max_iterations=limit, signal=signal, checkpoint=saver)

    def _node_caller(self, plan: Graph, bindings: Mapping[str, str]) -> NodeCall:
        """How the nodes of this graph are called. Raises `DefinitionError` on a binding that cannot hold."""
        types = {node.id: node.type for node in plan.nodes}
        for node_id, worker_id in bindings.items():
            if node_id not in types:
                raise DefinitionError(f"Unknown graph Node binding: {node_id}")
            registration = self._registry.find(worker_id)
            if registration is None or types[node_id] not in registration.capabilities:
                raise DefinitionError(f"Worker {worker_id} does not expose {types[node_id]}")
        pins = dict(bindings)

        async def call_node(node: GraphNode, value: Any, execution: Execution, signal: Signal | None) -> Any:
            return await self._calls.route(Call(node.type, value, signal, execution), pins.get(node.id))

        return call_node


def _check_graph(plan: object) -> None:
    if not isinstance(plan, Graph):
        raise DefinitionError("Only a graph can be run")
