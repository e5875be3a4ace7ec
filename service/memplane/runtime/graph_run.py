"""Running one graph: as much at once as its dependencies and the limit allow. Source: G-03 … G-11, K-03, K-04.

The first failure stops new nodes from starting; what runs is finished, never cut, and then the first error is raised
unchanged. An aborted signal does the same with its reason. Only asyncio's own cancellation cancels running nodes, and
waits for them.

Without a checkpoint a node starts as soon as its dependencies are done. With one the graph advances in waves, because a
checkpoint is only saved while nothing is in flight.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

from memplane.runtime.checkpoint import GraphCheckpoint, call
from memplane.runtime.context import Execution
from memplane.runtime.errors import DefinitionError
from memplane.runtime.graph import Graph, GraphNode
from memplane.runtime.waiting import settle
from memplane.signal import Signal

NodeCall: TypeAlias = Callable[[GraphNode, Any, Execution, Signal | None], Awaitable[Any]]
"""How a graph invokes one of its nodes: (node, its input, execution, signal) → output."""


async def run_graph(
    plan: Graph,
    input: Any,  # noqa: A002 - public name
    invoke: NodeCall,
    *,
    signal: Signal | None = None,
    concurrency: int | None = None,
    checkpoint: GraphCheckpoint | None = None,
) -> Mapping[str, Any]:
    """Outputs by node id in declaration order, read-only. `concurrency` None is unlimited."""
    if signal is not None:
        signal.raise_if_aborted()
    run = _GraphRun(plan, input, invoke, signal, concurrency)
    if checkpoint is None:
        await run.follow()
    else:
        await run.in_waves(checkpoint)
    return MappingProxyType({node.id: run.outputs[node.id] for node in plan.nodes})


def check_graph_concurrency(value: int | None) -> int | None:
    """None or an integer ≥ 1. Raises `DefinitionError`."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise DefinitionError("Graph concurrency must be a positive integer")
    return value


class _GraphRun:
    def __init__(self, plan: Graph, input: Any, invoke: NodeCall, signal: Signal | None, limit: int | None) -> None:  # noqa: A002
        self.outputs: dict[str, Any] = {}
        self._plan, self._input, self._invoke, self._signal = plan, input, invoke, signal
        self._limit = limit if limit is not None else max(1, len(plan.nodes))
        self._run_id = str(uuid.uuid4())
        self._waiting = {node.id: len(node.dependencies) for node in plan.nodes}
        self._followers: dict[str, list[GraphNode]] = {node.id: [] for node in plan.nodes}
        for node in plan.nodes:
            for dependency in node.dependencies:
                self._followers[dependency].append(node)
        self._ready = deque(node for node in plan.nodes if not node.dependencies)
        self._tasks: dict[asyncio.Task[Any], GraphNode] = {}
        self._error: BaseException | None = None
        self._uncertain: list[str] = []
        self._idle: asyncio.Future[None] | None = None
        self._keep_starting = True

    async def follow(self) -> None:
        """Start every node as soon as it may."""
        await self._drain_started()
        self._raise_outcome()

    async def in_waves(self, checkpoint: GraphCheckpoint) -> None:
        """Start what is ready, finish all of it, save, and so on."""
        self._restore(checkpoint.restored)
        if not checkpoint.resumed:
            await checkpoint.store(self.outputs, [])
        self._keep_starting = False
        while self._ready and self._error is None and not self._aborted():
            try:
                await self._drain_started()
            except asyncio.CancelledError:
                # What was cut off may have had its effect: without this mark a resume would repeat it.
                await checkpoint.store(self.outputs, self._uncertain)
                raise
            await checkpoint.store(self.outputs, self._uncertain)
        self._raise_outcome()

    def _restore(self, outputs: Mapping[str, Any]) -> None:
        for node in self._plan.nodes:
            if node.id in outputs:
                self._complete(node, outputs[node.id])
        self._ready = deque(node for node in self._ready if node.id not in outputs)

    async def _drain_started(self) -> None:
        self._start_ready()
        if not self._tasks:
            return
        self._idle = asyncio.get_running_loop().create_future()
        try:
            await self._idle
        except asyncio.CancelledError:
            self._error = self._error or asyncio.CancelledError()
            await settle(tuple(self._tasks), cancel=True)
            raise

    def _start_ready(self) -> None:
        while self._ready and len(self._tasks) < self._limit and self._error is None and not self._aborted():
            node = self._ready.popleft()
            task = asyncio.get_running_loop().create_task(self._perform(node))
            self._tasks[task] = node
            task.add_done_callback(self._settled)

    async def _perform(self, node: GraphNode) -> Any:
        # Looked at again when the task first runs: the signal may have aborted since it was made.
        if self._signal is not None:
            self._signal.raise_if_aborted()
        if node.takes_outputs:
            visible = MappingProxyType({name: self.outputs[name] for name in node.dependencies})
            bound = await call(node.bind, self._input, visible)
        else:
            bound = await call(node.bind, self._input)
        return await self._invoke(node, bound, Execution(self._plan.id, self._run_id, node.id), self._signal)

    def _settled(self, task: asyncio.Task[Any]) -> None:
        node = self._tasks.pop(task)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is None:
            self._complete(node, task.result())
        else:
            self._uncertain.append(node.id)
            self._error = self._error or error
        if self._keep_starting:
            self._start_ready()
        if not self._tasks and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def _complete(self, node: GraphNode, output: Any) -> None:
        self.outputs[node.id] = output
        for follower in self._followers[node.id]:
            self._waiting[follower.id] -= 1
            if self._waiting[follower.id] == 0:
                self._ready.append(follower)

    def _aborted(self) -> bool:
        return self._signal is not None and self._signal.aborted

    def _raise_outcome(self) -> None:
        if self._error is not None:
            raise self._error
        if self._signal is not None:
            self._signal.raise_if_aborted()
