"""What a node handler sees of the runtime that called it: `ctx`. Source: design section 3, behaviours RT-10, RT-11.

Every call gets its own context; it belongs to that call and is not to be kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from memplane.signal import Signal

if TYPE_CHECKING:
    from memplane.runtime.graph import Graph
    from memplane.runtime.registry import Registration
    from memplane.runtime.sandbox import Sandbox


ADDRESS_FIELDS = {
    "workerId": "worker_id",
    "workerType": "worker_type",
    "hostId": "host_id",
    "processId": "process_id",
}
"""Attribute by wire name."""


@dataclass(frozen=True, slots=True)
class WorkerAddress(Mapping[str, str]):
    """Where a worker lives. Unique by `worker_id` within one runtime.

    Also a mapping with the wire names, so that it can be handed to `register_remote` of another runtime.
    """

    worker_id: str
    worker_type: str
    host_id: str
    process_id: str

    def __getitem__(self, name: str) -> str:
        value: str = getattr(self, ADDRESS_FIELDS[name])
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(ADDRESS_FIELDS)

    def __len__(self) -> int:
        return len(ADDRESS_FIELDS)

    def as_wire(self) -> dict[str, str]:
        """The wire object: `workerId, workerType, hostId, processId`."""
        return dict(self)


@dataclass(frozen=True, slots=True)
class Execution:
    """The graph run that a call belongs to. `node_id` is the graph's name of the node, not its type."""

    graph_id: str
    run_id: str
    node_id: str

    def as_wire(self) -> dict[str, str]:
        """The wire object: `graphId, runId, nodeId`."""
        return {"graphId": self.graph_id, "runId": self.run_id, "nodeId": self.node_id}


class NestedCalls(Protocol):
    """What the runtime gives a context for calls made by a handler."""

    async def invoke(self, context: WorkerContext, node: str, input: Any, signal: Signal | None) -> Any: ...  # noqa: A002
    async def run(
        self,
        context: WorkerContext,
        plan: Graph,
        input: Any,  # noqa: A002
        signal: Signal | None,
    ) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """The second argument of every node handler.

    signal: the caller's signal, the same object; None when none was given (remote callers give none).
    execution: the graph run, None for a direct call.
    worker: the address of the replica that runs the handler.
    resources: what this registration's `resources()` made.
    services: read-only, by name; at least `config` (a `RuntimeConfig` or None) and `sandbox`.
    sandbox: `services["sandbox"]`.
    source: the address of the worker whose handler made this call, None for outside callers.
    calls, registration: how `invoke` and `run` reach the runtime.
    """

    signal: Signal | None
    execution: Execution | None
    worker: WorkerAddress
    resources: Any
    services: Mapping[str, Any]
    source: WorkerAddress | None
    calls: NestedCalls
    registration: Registration

    @property
    def sandbox(self) -> Sandbox:
        sandbox: Sandbox = self.services["sandbox"]
        return sandbox

    async def invoke(self, node: str, input: Any, *, signal: Signal | None = None) -> Any:  # noqa: A002
        """Call a node of any worker by its public capability, within this execution.

        Both signals count, this call's and `signal`. Raises what `Runtime.invoke` raises.
        """
        return await self.calls.invoke(self, node, input, signal)

    async def run(self, plan: Graph, input: Any, *, signal: Signal | None = None) -> Mapping[str, Any]:  # noqa: A002
        """Run a graph on this replica alone, hidden nodes included, without taking capacity.

        Raises `DefinitionError` before any effect when the worker lacks one of its nodes.
        """
        return await self.calls.run(self, plan, input, signal)
