"""A loop over graphs as a frozen description: by state, or by a plan, a generator of steps. Source: L-01 … L-12."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeAlias

from memplane.runtime.errors import DefinitionError
from memplane.runtime.graph import Graph
from memplane.signal import Signal

DEFAULT_MAX_ITERATIONS = 32
LARGEST_COUNT = 2**53 - 1
"""Counts beyond this are not exact in JSON of other languages."""

Plan: TypeAlias = Callable[[Any], "Generator[GraphStep, Any, Any] | AsyncGenerator[GraphStep, Any]"]
"""`plan(input)` yields `graph_step(...)` and is sent the outputs. What a plain generator returns is the loop's result;
an async generator cannot return a value, its loop ends with None."""


@dataclass(frozen=True, slots=True, eq=False)
class StateLoop:
    """Select graph(state) → bind(state) → run → update(state, outputs) → done(new state, outputs); at least once."""

    id: str
    graph: Graph | Callable[[Any], Any]
    bind: Callable[..., Any]
    update: Callable[..., Any]
    done: Callable[..., Any]
    max_iterations: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class PlanLoop:
    """A generator decides which graph runs next; every graph that starts costs one iteration."""

    id: str
    plan: Plan
    max_iterations: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class GraphStep:
    """One graph run asked for by a plan. An aborted `signal` fails the step without running a node."""

    graph: Graph
    input: Any
    signal: Signal | None = None


def graph_step(graph: Graph, input: Any, *, signal: Signal | None = None) -> GraphStep:  # noqa: A002 - public name
    """What a plan yields to run a graph."""
    return GraphStep(graph, input, signal)


def loop(
    *,
    id: str,  # noqa: A002 - public name
    graph: Graph | Callable[[Any], Any] | None = None,
    bind: Callable[..., Any] | None = None,
    update: Callable[..., Any] | None = None,
    done: Callable[..., Any] | None = None,
    plan: Plan | None = None,
    max_iterations: int | None = None,
) -> StateLoop | PlanLoop:
    """Describe a loop: either `plan`, or `graph` (or a selector of one), `bind`, `update` and `done`.

    Callbacks may be async. `update` and `done` take (state) or (state, outputs). Raises `DefinitionError`.
    """
    state_parts = (graph, bind, update, done)
    if plan is not None:
        if any(part is not None for part in state_parts):
            raise DefinitionError("A Loop has either a plan or graph, bind, update and done")
        if not callable(plan) or not _named(id) or not _countable(max_iterations):
            raise DefinitionError("Loop ID and positive maxIterations are required")
        return PlanLoop(id, plan, max_iterations)
    if not _named(id):
        raise DefinitionError("Loop ID cannot be empty")
    if not _countable(max_iterations):
        raise DefinitionError("Loop maxIterations must be a positive integer")
    if not (isinstance(graph, Graph) or callable(graph)) or not (
        callable(bind) and callable(update) and callable(done)
    ):
        raise DefinitionError("A Loop needs graph, bind, update and done, or a plan")
    return StateLoop(id, graph, bind, update, done, max_iterations)


def _named(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _countable(value: object) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= LARGEST_COUNT)
