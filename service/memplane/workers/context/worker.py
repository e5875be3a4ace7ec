"""`create_context_worker` and `create_context`: CONTEXT inside a runtime and without. Source: behaviours 5.1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memplane.contracts import CallOptions
from memplane.runtime import Handler, WorkerContext, WorkerDefinition, define_worker
from memplane.workers.context.operations import NODES, ContextOperations, ReferenceResolver
from memplane.workers.context.policy import ContextPolicy
from memplane.workers.context.state import ContextOperationQueue, ContextStateStore


def create_context(
    *,
    policy: Mapping[str, Any] | None = None,
    state_store: ContextStateStore | None = None,
    reference_resolver: ReferenceResolver | None = None,
    operation_queue: ContextOperationQueue | None = None,
) -> ContextOperations:
    """The four operations for direct use: `await context.load({...})`, `update`, `select`, `compress`, `execute`.

    policy: `{maxInlineBytes?, maxItems?, maxTokens?, duplicate?, missingRemoval?}`, as `workers.context.policy`.
    state_store: needed for calls with `scope`; calls without never touch it. Raises `DefinitionError`.
    """
    return ContextOperations(
        ContextPolicy.of(policy),
        state_store=state_store,
        reference_resolver=reference_resolver,
        operation_queue=operation_queue,
    )


def create_context_worker(
    *,
    policy: Mapping[str, Any] | None = None,
    state_store: ContextStateStore | None = None,
    reference_resolver: ReferenceResolver | None = None,
    operation_queue: ContextOperationQueue | None = None,
    concurrency: int | None = None,
) -> WorkerDefinition:
    """A worker of type CONTEXT with exactly LOAD, SELECT, UPDATE and COMPRESS. Options as `create_context`."""
    operations = create_context(
        policy=policy,
        state_store=state_store,
        reference_resolver=reference_resolver,
        operation_queue=operation_queue,
    )
    return define_worker(
        type="CONTEXT", nodes={node: _handler(operations, node) for node in NODES}, concurrency=concurrency
    )


def _handler(operations: ContextOperations, node: str) -> Handler:
    async def handle(input: Any, ctx: WorkerContext) -> Any:  # noqa: A002
        return await operations.execute(node, input, CallOptions(signal=ctx.signal, runtime=ctx))

    return handle
