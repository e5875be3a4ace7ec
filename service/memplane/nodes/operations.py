"""The six operations: read the input, call the plugin unless there is nothing to do, check the output."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from memplane.contracts import (
    CallOptions,
    DeleteOutput,
    MemoryItem,
    MemorySearchProvider,
    MemoryStore,
    QueryOutput,
    SearchHit,
)
from memplane.errors import PluginError
from memplane.nodes import inputs, outputs
from memplane.nodes.limits import QUERY_LIMIT, SEARCH_LIMIT, default_limit


@dataclass(frozen=True, slots=True)
class Plugins:
    """Where a memory's data lives. `search` replaces the store's own search for SEARCH alone."""

    store: MemoryStore
    search: MemorySearchProvider | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One call: its input, the layers of default limits (strongest first), and what the plugin gets beside it."""

    input: Any
    defaults: tuple[Mapping[str, int], ...]
    options: CallOptions


Operation: TypeAlias = Callable[[Plugins, Call], Awaitable[Any]]


async def get(plugins: Plugins, call: Call) -> list[MemoryItem]:
    request = inputs.read_get(call.input)
    if not request["ids"] and not request["keys"]:
        return []
    return outputs.check_get(request, await _value(plugins.store.get(request, call.options)))


async def query(plugins: Plugins, call: Call) -> QueryOutput:
    request = inputs.read_query(call.input, default_limit(QUERY_LIMIT, *call.defaults))
    return outputs.check_query(request, await _value(plugins.store.query(request, call.options)))


async def search(plugins: Plugins, call: Call) -> list[SearchHit]:
    """The explicit search plugin, else the store's own; an explicit one that cannot search is not passed over."""
    request = inputs.read_search(call.input, default_limit(SEARCH_LIMIT, *call.defaults))
    method = getattr(plugins.store if plugins.search is None else plugins.search, "search", None)
    if not callable(method):
        raise PluginError("SEARCH_UNAVAILABLE", "Memory search is not configured")
    return outputs.check_search(request, await _value(method(request, call.options)))


async def write(plugins: Plugins, call: Call) -> list[MemoryItem]:
    request = inputs.read_write(call.input)
    if not request["memories"]:
        return []
    return outputs.check_write(request, await _value(plugins.store.write(request, call.options)))


async def update(plugins: Plugins, call: Call) -> list[MemoryItem]:
    request = inputs.read_update(call.input)
    if not request["memories"]:
        return []
    return outputs.check_update(request, await _value(plugins.store.update(request, call.options)))


async def delete(plugins: Plugins, call: Call) -> DeleteOutput:
    request = inputs.read_delete(call.input)
    if not request["ids"]:
        return {"deleted": []}
    return outputs.check_delete(request, await _value(plugins.store.delete(request, call.options)))


OPERATIONS: Mapping[str, Operation] = {
    "MEMORY.GET": get,
    "MEMORY.QUERY": query,
    "MEMORY.SEARCH": search,
    "MEMORY.WRITE": write,
    "MEMORY.UPDATE": update,
    "MEMORY.DELETE": delete,
}


async def _value(result: Any) -> Any:
    """A plugin method may also be an ordinary function; what it returns is checked just the same."""
    return await result if inspect.isawaitable(result) else result
