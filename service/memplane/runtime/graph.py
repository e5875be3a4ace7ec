"""A graph of node calls as an immutable description. Source: seed `000`, behaviours G-01 … G-04, design section 3.

There are no conditional edges: choose between graphs with ordinary code, or let a loop choose.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from memplane.runtime.errors import DefinitionError
from memplane.runtime.worker import NODE_ID

Bind: TypeAlias = Callable[..., Any]
"""Makes a node's input: `bind(input)` or `bind(input, outputs)`, plain or async."""

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True, eq=False)
class GraphNode:
    """One call in a graph.

    id: its name in the graph. type: the node id to invoke (`MEMORY.GET`). dependencies: names of nodes whose outputs
    `bind` sees, in declared order. takes_outputs: whether `bind` has a second parameter for them.
    """

    id: str
    type: str
    dependencies: tuple[str, ...]
    bind: Bind
    takes_outputs: bool


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """An immutable graph; `node` returns a longer one. Declaration order is a topological order by construction."""

    id: str
    nodes: tuple[GraphNode, ...] = ()

    def node(self, id: str, type: str, dependencies: Sequence[str], bind: Bind) -> Graph:  # noqa: A002 - public names
        """A new graph with one more node. Raises `DefinitionError`.

        `dependencies` name nodes declared before (repeated names count once), so a cycle cannot be written.
        """
        declared = {node.id for node in self.nodes}
        if not isinstance(id, str) or not id.strip() or id in declared:
            raise DefinitionError(f"Duplicate or empty graph Node ID: {id}")
        if not isinstance(type, str) or not NODE_ID.fullmatch(type):
            raise DefinitionError(f"Graph Node {id} has an invalid type: {type}")
        if isinstance(dependencies, str):
            raise DefinitionError(f"The dependencies of graph Node {id} must be a list")
        for dependency in dependencies:
            if dependency not in declared:
                raise DefinitionError(f"Unknown graph dependency: {dependency}")
        if not callable(bind):
            raise DefinitionError(f"The bind of graph Node {id} must be a function")
        added = GraphNode(id, type, tuple(dict.fromkeys(dependencies)), bind, arity(bind) >= 2)
        return replace(self, nodes=(*self.nodes, added))


def graph(id: str) -> Graph:  # noqa: A002 - public name
    """An empty graph, to be grown with `.node(...)`."""
    if not isinstance(id, str) or not id.strip():
        raise DefinitionError("Graph ID cannot be empty")
    return Graph(id)


def arity(function: Callable[..., Any]) -> int:
    """How many positional arguments a callback takes: 1, or 2 and more. Unknown signatures (C code) count as 1."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 1
    if any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters):
        return 2
    # A default marks a captured variable (`lambda query, k=k: …`), not a wish for the outputs.
    return sum(p.kind in _POSITIONAL and p.default is inspect.Parameter.empty for p in parameters)
