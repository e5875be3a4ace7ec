"""What a node worker is: its nodes, which of them others may call, and what it holds. Source: design section 3.

A definition is inert and may be registered many times; every registration gets resources of its own (see `runtime.py`).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from memplane.runtime.errors import DefinitionError

if TYPE_CHECKING:
    from memplane.runtime.context import WorkerContext

Handler: TypeAlias = "Callable[[Any, WorkerContext], Awaitable[Any]]"
"""`async handler(input, ctx)`: takes a node's input, returns its output."""

NODE_ID = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)+")
"""A qualified node id: at least two names joined by dots, `MEMORY.GET`."""


@dataclass(frozen=True, slots=True)
class NodeDefinition:
    """One node's implementation, as a node descriptor's `.define(worker_type, handler)` returns it.

    `id` is the node id (`MEMORY.GET`), `worker_type` the type of the only kind of worker that may hold it.
    """

    id: str
    worker_type: str
    handler: Handler


@dataclass(frozen=True, slots=True, eq=False)
class WorkerDefinition:
    """A kind of worker. Made by `define_worker`, which checks it.

    type: its name, `MEMORY`.
    nodes: handler by node id (a read-only copy).
    expose: the node ids that others may call, in the order of `nodes`; the rest serves `ctx.run` alone.
    resources: called once per registration, not asynchronous; its result is `ctx.resources`.
    dispose: called once with those resources when the registration has drained; may be asynchronous.
    concurrency: most calls at a time per registration; None is unlimited. There is no queue behind it.
    """

    type: str
    nodes: Mapping[str, Handler]
    expose: tuple[str, ...]
    resources: Callable[[], Any] | None = None
    dispose: Callable[[Any], Any] | None = None
    concurrency: int | None = None


def define_worker(
    *,
    type: str,  # noqa: A002 - public name, fixed by the design
    nodes: Mapping[str, Handler | NodeDefinition],
    expose: list[str] | tuple[str, ...] | None = None,
    resources: Callable[[], Any] | None = None,
    dispose: Callable[[Any], Any] | None = None,
    concurrency: int | None = None,
) -> WorkerDefinition:
    """Describe a worker. Raises `DefinitionError` on anything that could never work (behaviours RT-08, M-62).

    `nodes` maps a node id to `async handler(input, ctx)` or to the result of a node descriptor's `.define(...)`.
    `expose` (default: all) names the nodes that routing and remote callers may reach.
    """
    if not isinstance(type, str) or not type.strip():
        raise DefinitionError("Worker type cannot be empty")
    if not isinstance(nodes, Mapping) or not nodes:
        raise DefinitionError(f"Worker {type} must implement at least one Node")
    handlers = {node: _handler(type, node, value) for node, value in nodes.items()}
    return WorkerDefinition(
        type=type,
        nodes=MappingProxyType(handlers),
        expose=_exposed(type, tuple(handlers), expose),
        resources=_callable("resources", resources),
        dispose=_callable("dispose", dispose),
        concurrency=check_concurrency(concurrency),
    )


def check_concurrency(value: int | None) -> int | None:
    """A capacity: None (unlimited) or an integer ≥ 1. Booleans and floats are no capacity."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise DefinitionError("Worker concurrency must be a positive integer")
    return value


def _handler(worker_type: str, node: object, value: Handler | NodeDefinition) -> Handler:
    if not isinstance(node, str) or not NODE_ID.fullmatch(node):
        raise DefinitionError(f"Worker {worker_type} has an invalid Node ID: {node}")
    if isinstance(value, NodeDefinition):
        if value.id != node:
            raise DefinitionError(f"Node definition {value.id} cannot implement {node}")
        if value.worker_type != worker_type:
            raise DefinitionError(f"Node definition {node} belongs to Worker {value.worker_type}, not {worker_type}")
        value = value.handler
    if not callable(value):
        raise DefinitionError(f"The handler of {node} must be an async function of (input, ctx)")
    if inspect.isgeneratorfunction(value) or inspect.isasyncgenfunction(value):
        raise DefinitionError(f"The handler of {node} must return its output, not yield it")
    return value


def _exposed(worker_type: str, nodes: tuple[str, ...], expose: list[str] | tuple[str, ...] | None) -> tuple[str, ...]:
    if expose is None:
        return nodes
    if not isinstance(expose, list | tuple) or not expose:
        raise DefinitionError(f"Worker {worker_type} must expose at least one Node")
    unknown = [node for node in expose if node not in nodes]
    if unknown:
        raise DefinitionError(f"Worker {worker_type} cannot expose an unimplemented Node: {unknown[0]}")
    return tuple(node for node in nodes if node in expose)


def _callable(name: str, value: Callable[..., Any] | None) -> Callable[..., Any] | None:
    if value is not None and not callable(value):
        raise DefinitionError(f"Worker {name} must be a function")
    return value
