"""Making one call: on a worker here, or through a transport on one elsewhere. Source: RT-05, RT-10, RT-12, RT-18."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from memplane.runtime.artifacts import ArtifactStore
from memplane.runtime.context import Execution, WorkerAddress, WorkerContext
from memplane.runtime.envelope import Invocation, check_answer, decode_payload, encode_payload, revive
from memplane.runtime.errors import DefinitionError, NoWorkerAvailable, TransportError
from memplane.runtime.graph import Graph, GraphNode
from memplane.runtime.graph_run import run_graph
from memplane.runtime.registry import Registration, Registry, RemoteInvoke
from memplane.runtime.waiting import abortable, linked
from memplane.signal import Signal


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a node: what for, on whose behalf, within which graph run."""

    node: str
    input: Any
    signal: Signal | None = None
    execution: Execution | None = None
    source: WorkerAddress | None = None


class Calls:
    """Routes and performs calls; what `ctx.invoke` and `ctx.run` reach (a `NestedCalls`)."""

    def __init__(
        self, registry: Registry, artifacts: ArtifactStore | None, inline_limit: int, graph_concurrency: int | None
    ) -> None:
        self._registry, self._artifacts, self._inline_limit = registry, artifacts, inline_limit
        self._graph_concurrency = graph_concurrency

    async def route(self, call: Call, worker_id: str | None = None) -> Any:
        """Choose a worker and call it. An aborted signal comes first."""
        if call.signal is not None:
            call.signal.raise_if_aborted()
        registration = self._registry.choose(call.node, worker_id)
        if registration.remote is None:
            return await self.perform(registration, call)
        with registration.in_flight:
            return await abortable(self._send(registration, registration.remote, call), call.signal)

    async def perform(self, registration: Registration, call: Call) -> Any:
        """Call a handler of this process with the caller's own objects, taking one of its capacity."""
        with registration.in_flight:
            return await self._handle(registration, call)

    async def invoke(self, context: WorkerContext, node: str, input: Any, signal: Signal | None) -> Any:  # noqa: A002
        """`ctx.invoke`: by public capability, with the caller's execution and this worker as source."""
        with linked(context.signal, signal) as both:
            return await self.route(Call(node, input, both, context.execution, context.worker))

    async def run(
        self,
        context: WorkerContext,
        plan: Graph,
        input: Any,  # noqa: A002
        signal: Signal | None,
    ) -> Mapping[str, Any]:
        """`ctx.run`: on the same replica, hidden nodes included, outside its capacity."""
        registration = context.registration
        if not isinstance(plan, Graph):
            raise DefinitionError("Only a graph can be run")
        assert registration.definition is not None
        for node in plan.nodes:
            if node.type not in registration.definition.nodes:
                raise DefinitionError(f"Worker does not implement {node.type}")

        async def call_node(node: GraphNode, value: Any, execution: Execution, signal: Signal | None) -> Any:
            return await self._handle(registration, Call(node.type, value, signal, execution, context.worker))

        with linked(context.signal, signal) as both:
            return await run_graph(plan, input, call_node, signal=both, concurrency=self._graph_concurrency)

    async def answer(self, invocation: Invocation) -> dict[str, Any]:
        """Perform what another runtime asks for: `{invocationId, payload}`. See `Runtime.receive`."""
        registration = self._registry.local(invocation.target)
        if registration is None or invocation.node not in registration.capabilities:
            raise TransportError("Worker address or Node is mismatched")
        if not registration.has_capacity():
            raise NoWorkerAvailable(invocation.node)
        value = await decode_payload(invocation.payload, self._artifacts)
        call = Call(invocation.node, value, None, invocation.execution, invocation.source)
        output = await self.perform(registration, call)
        payload = await encode_payload(output, self._artifacts, self._inline_limit)
        return {"invocationId": invocation.id, "payload": payload}

    async def _handle(self, registration: Registration, call: Call) -> Any:
        signal = call.signal
        if signal is not None:
            signal.raise_if_aborted()
        assert registration.definition is not None
        context = WorkerContext(
            signal=signal,
            execution=call.execution,
            worker=registration.address,
            resources=registration.resources,
            services=registration.services,
            source=call.source,
            calls=self,
            registration=registration,
        )
        try:
            output = await registration.definition.nodes[call.node](call.input, context)
        except Exception:
            # Once the caller has aborted, its reason is the outcome, whatever the handler made of it.
            if signal is not None:
                signal.raise_if_aborted()
            raise
        if signal is not None:
            signal.raise_if_aborted()
        return output

    async def _send(self, registration: Registration, remote: RemoteInvoke, call: Call) -> Any:
        payload = await encode_payload(call.input, self._artifacts, self._inline_limit)
        invocation = Invocation(
            str(uuid.uuid4()), call.node, registration.address, payload, call.source, call.execution
        )
        answer = await remote(invocation.as_wire(), call.signal)
        return revive(call.node, await decode_payload(check_answer(answer, invocation.id), self._artifacts))
