"""`create_memory_worker`: the six nodes inside a runtime. Source: seed `000`; cases M-49, M-60 to M-62."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memplane.contracts import NODES, Defaults, MemorySearchProvider, MemoryStore, NodeResult
from memplane.nodes.descriptors import WORKER_TYPE, NodeDescriptor
from memplane.nodes.memory import Memory, create_memory
from memplane.runtime import Handler, NodeDefinition, WorkerContext, WorkerDefinition, define_worker


def create_memory_worker(
    *,
    store: MemoryStore,
    search: MemorySearchProvider | None = None,
    defaults: Defaults | Mapping[str, int] | None = None,
    concurrency: int | None = None,
) -> WorkerDefinition:
    """A worker of type MEMORY that implements exactly the six nodes.

    Plugins get the call's signal and a runtime bound to the call. Registrations of one definition share the plugins;
    closing the runtime drains calls and closes no plugin. `concurrency` limits the calls in flight (no queue).
    Raises what `create_memory` raises, and `DefinitionError` for a concurrency that is no positive integer.
    """
    memory = create_memory(store=store, search=search, defaults=defaults)
    nodes = {node: _definition(memory, node) for node in NODES}
    return define_worker(type=WORKER_TYPE, nodes=nodes, concurrency=concurrency)


def _definition(memory: Memory, node: str) -> NodeDefinition:
    async def handle(input: Any, ctx: WorkerContext) -> NodeResult[Any]:  # noqa: A002
        return await memory.execute(node, input, defaults=_runtime_defaults(ctx), signal=ctx.signal, runtime=ctx)

    handler: Handler = handle
    return NodeDescriptor(node).define(WORKER_TYPE, handler)


def _runtime_defaults(ctx: WorkerContext) -> Mapping[str, int] | None:
    """The YAML's `workers.memory`, which ranks below the factory's defaults."""
    config = ctx.services.get("config")
    limits: Mapping[str, int] | None = None if config is None else config.memory
    return limits
