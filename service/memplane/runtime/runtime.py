"""One process's runtime: who is registered, who takes a call, and a close that drains. Source: RT-01 … RT-18.

Calls in this process are awaited where they stand, with the very same objects: no queue, no copy, no task of their own.
Work that was accepted before `close()` completes, nested calls included; only calls from outside are refused meanwhile.

Neighbours: `registry.py` holds registrations, `router.py` chooses among them, `calls.py` makes one call, `plans.py`
runs graphs and loops, transports carry `envelope.py` documents to and from other runtimes.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from memplane.runtime.artifacts import ArtifactStore
from memplane.runtime.calls import Call, Calls
from memplane.runtime.envelope import parse_invocation
from memplane.runtime.errors import DefinitionError, RuntimeClosed
from memplane.runtime.events import Event, EventFabric, EventFailure, EventHandler, LocalEventFabric, Subscription
from memplane.runtime.graph import Graph
from memplane.runtime.loop import PlanLoop, StateLoop
from memplane.runtime.loop_run import OnGraph
from memplane.runtime.plans import Plans
from memplane.runtime.registry import Registry, WorkerHandle, parse_address
from memplane.runtime.sandbox import Sandbox
from memplane.runtime.waiting import InFlight
from memplane.runtime.worker import WorkerDefinition, check_concurrency
from memplane.signal import Signal

if TYPE_CHECKING:
    from memplane.runtime.config import RuntimeConfig


class Transport(Protocol):
    """Carries an invocation to another runtime and brings its answer. Documents: see `envelope.py`.

    Who made a transport closes it, after the runtime.
    """

    @property
    def id(self) -> str: ...
    async def invoke(self, envelope: Mapping[str, Any], signal: Signal | None = None) -> Mapping[str, Any]: ...


def create_runtime(
    *,
    config: RuntimeConfig | None = None,
    workers: Iterable[WorkerDefinition] = (),
    sandbox: Sandbox | Mapping[str, Any] | None = None,
    host_id: str = "local",
    process_id: str | None = None,
    transports: Iterable[Transport] = (),
    events: EventFabric | None = None,
    artifacts: ArtifactStore | None = None,
    inline_limit_bytes: int = 65536,
) -> Runtime:
    """A runtime with these workers registered. Raises `DefinitionError`.

    sandbox: replaces the configured policy entirely; without either everything is denied.
    events: a fabric shared with other runtimes; its own by default. inline_limit_bytes: longer payloads of remote calls
    go through `artifacts`, when there is such a store.
    """
    runtime = Runtime(
        config=config,
        sandbox=sandbox,
        host_id=host_id,
        process_id=process_id if process_id is not None else str(uuid.uuid4()),
        transports=transports,
        events=events,
        artifacts=artifacts,
        inline_limit_bytes=inline_limit_bytes,
    )
    for worker in workers:
        runtime.register(worker)
    return runtime


class Runtime:
    """See `create_runtime`. Belongs to one event loop; not thread-safe."""

    def __init__(
        self,
        *,
        config: RuntimeConfig | None,
        sandbox: Sandbox | Mapping[str, Any] | None,
        host_id: str,
        process_id: str,
        transports: Iterable[Transport],
        events: EventFabric | None,
        artifacts: ArtifactStore | None,
        inline_limit_bytes: int,
    ) -> None:
        self.config = config
        self._registry = Registry(host_id, process_id, {"config": config, "sandbox": _sandbox(sandbox, config)})
        self._transports = _by_id(transports)
        self._own_events = LocalEventFabric() if events is None else None
        self._events: EventFabric = events if events is not None else self._own_events  # type: ignore[assignment]
        self._subscriptions: list[Subscription] = []
        self._accepted = InFlight()
        self._closing: asyncio.Task[None] | None = None
        limits: Mapping[str, int] = {} if config is None else config.runtime
        self._calls = Calls(self._registry, artifacts, _limit(inline_limit_bytes), limits.get("graphConcurrency"))
        self._plans = Plans(self._registry, self._calls, limits)

    # -- workers ------------------------------------------------------------------------------------------------------

    def register(
        self,
        worker: WorkerDefinition,
        *,
        id: str | None = None,  # noqa: A002 - public name
        services: Mapping[str, Any] | None = None,
    ) -> WorkerHandle:
        """Register a worker of this process: makes its resources. Raises `DefinitionError` on a known or empty id.

        services: by name, laid over the runtime's (`config`, `sandbox`); a `sandbox` may be a plain policy.
        """
        self._check_open()
        if not isinstance(worker, WorkerDefinition):
            raise DefinitionError("Only the result of define_worker can be registered")
        overlay = dict(services or {})
        if "sandbox" in overlay:
            overlay["sandbox"] = _sandbox(overlay["sandbox"], None)
        return self._registry.add_local(worker, str(uuid.uuid4()) if id is None else id, overlay)

    def register_remote(
        self,
        *,
        address: Mapping[str, str],
        capabilities: Iterable[str],
        transport_id: str,
        concurrency: int | None = None,
    ) -> WorkerHandle:
        """Make a worker of another process known. `address` holds workerId, workerType, hostId, processId.

        Raises `DefinitionError`: unknown transport, known id, an address in this process, no capability.
        """
        self._check_open()
        transport = self._transports.get(transport_id)
        if transport is None:
            raise DefinitionError(f"Transport is not installed: {transport_id}")
        return self._registry.add_remote(
            parse_address(address), frozenset(capabilities), transport.invoke, check_concurrency(concurrency)
        )

    def workers(self) -> list[dict[str, Any]]:
        """What is registered, in that order: `address, capabilities, available, active, concurrency` of each."""
        return [registration.as_wire() for registration in self._registry.routable()]

    # -- calls --------------------------------------------------------------------------------------------------------

    async def invoke(
        self,
        node: str,
        input: Any,  # noqa: A002 - public name
        *,
        signal: Signal | None = None,
        worker_id: str | None = None,
    ) -> Any:
        """Call a node on the nearest free worker that exposes it, or on `worker_id` alone.

        Raises `NoWorkerAvailable`, the handler's exception unchanged, or the signal's reason once it has aborted
        (a running handler is awaited first, its output dropped).
        """
        with self._accept():
            return await self._calls.route(Call(node, input, signal), worker_id)

    async def run(
        self,
        plan: Graph,
        input: Any,  # noqa: A002
        *,
        signal: Signal | None = None,
        concurrency: int | None = None,
        bindings: Mapping[str, str] | None = None,
        checkpoint: Mapping[str, Any] | None = None,
    ) -> Mapping[str, Any]:
        """Run a graph: outputs by node id, read-only.

        concurrency: nodes at a time; None takes the configured value (unlimited without one).
        bindings: worker id by graph node id. checkpoint: `{version, save, resume?}`, see `checkpoint.py`.
        """
        with self._accept():
            return await self._plans.run_graph(
                plan, input, bindings or {}, signal=signal, concurrency=concurrency, checkpoint=checkpoint
            )

    async def loop(
        self,
        definition: StateLoop | PlanLoop,
        state: Any,
        *,
        signal: Signal | None = None,
        bindings: Mapping[str, Mapping[str, str]] | None = None,
        state_checkpoint: Mapping[str, Any] | None = None,
        on_graph: OnGraph | None = None,
        checkpoint: object = None,
    ) -> Any:
        """Run a loop: the state that satisfied `done`, or what the plan returned.

        bindings: worker id by graph node id, by graph id. state_checkpoint: `{id, version, save, resume?}`.
        Raises `LoopLimitReached`; errors of graphs and callbacks unchanged.
        """
        with self._accept():
            if checkpoint is not None:
                raise DefinitionError("Use per-Graph checkpoints or a Loop stateCheckpoint")
            return await self._plans.run_loop(
                definition, state, bindings or {}, signal=signal, state_checkpoint=state_checkpoint, on_graph=on_graph
            )

    async def receive(self, envelope: object) -> dict[str, Any]:
        """Answer an invocation that a transport server took in: `{invocationId, payload}`.

        Raises `InvalidInvocation`; "…mismatched" `TransportError` when the address is not exactly one of ours or the
        node is not exposed; whatever the handler raises. The handler gets no signal.
        """
        invocation = parse_invocation(envelope)
        with self._accept():
            return await self._calls.answer(invocation)

    # -- events -------------------------------------------------------------------------------------------------------

    def subscribe(self, type: str, handler: EventHandler) -> Callable[[], bool]:  # noqa: A002 - public name
        """Consume events of a type. The returned function stops it: True once, then False."""
        self._check_open()
        subscription = self._events.subscribe(type, handler)
        self._subscriptions = [other for other in self._subscriptions if other.live]
        self._subscriptions.append(subscription)
        return subscription

    def emit(self, event: Event) -> None:
        """Hand an event to all its consumers; returns before they have run."""
        self._check_open()
        self._events.emit(event)

    async def drain_events(self) -> list[EventFailure]:
        """Wait for running consumers; return and forget their failures."""
        return await self._events.drain()

    # -- end ----------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Refuse new work, let accepted work complete, then dispose workers and leave the event fabric.

        Every call waits for the same operation. Raises `ExceptionGroup("Worker cleanup failed")` when a dispose failed.
        """
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        await self._accepted.idle()
        failures = await self._registry.close()
        for subscription in self._subscriptions:
            subscription()
        for subscription in self._subscriptions:
            await subscription.idle()
        self._subscriptions.clear()
        if self._own_events is not None:
            await self._own_events.close()
        if failures:
            raise ExceptionGroup("Worker cleanup failed", failures)

    def _accept(self) -> InFlight:
        """`with self._accept():` around work from outside: refused once closing, waited for by `close`."""
        self._check_open()
        return self._accepted

    def _check_open(self) -> None:
        if self._closing is not None:
            raise RuntimeClosed("Runtime is closed")


def _sandbox(sandbox: Sandbox | Mapping[str, Any] | None, config: RuntimeConfig | None) -> Sandbox:
    if isinstance(sandbox, Sandbox):
        return sandbox
    if config is None:
        return Sandbox(sandbox)
    limits = config.runtime.get("sandbox")
    return Sandbox(config.sandbox if sandbox is None else sandbox, limits=limits)


def _by_id(transports: Iterable[Transport]) -> dict[str, Transport]:
    installed: dict[str, Transport] = {}
    for transport in transports:
        if not isinstance(transport.id, str) or not transport.id.strip() or transport.id in installed:
            raise DefinitionError(f"Duplicate or empty Transport ID: {transport.id}")
        installed[transport.id] = transport
    return installed


def _limit(value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise DefinitionError("inline_limit_bytes must be an integer of at least 0")
    return value
