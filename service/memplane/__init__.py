"""memplane: long-term memory for AI agents.

    from memplane import Scope, create_memory

    memory = create_memory(store=backend.scoped(Scope("acme", "ada")))
    result = await memory.write({"memories": [{"content": "prefers metric units"}]})

The names below are the public SDK; `memplane.runtime`, `memplane.workers`, `memplane.retrieval`, `memplane.recovery`
and `memplane.conformance` have more. Each name is imported when it is first used: `import memplane` alone loads no
other module, and nothing here needs an extra.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memplane.contracts import (
        CallOptions,
        EmbeddingProvider,
        MemorySearchProvider,
        MemoryStore,
        NodeResult,
        Scope,
        StoreBackend,
    )
    from memplane.errors import NodeFailed, PluginError
    from memplane.nodes import (
        create_memory,
        create_memory_worker,
        memory_delete_node,
        memory_get_node,
        memory_query_node,
        memory_search_node,
        memory_update_node,
        memory_write_node,
    )
    from memplane.signal import Signal

__all__ = [
    "CallOptions",
    "EmbeddingProvider",
    "MemorySearchProvider",
    "MemoryStore",
    "NodeFailed",
    "NodeResult",
    "PluginError",
    "Scope",
    "Signal",
    "StoreBackend",
    "create_memory",
    "create_memory_worker",
    "memory_delete_node",
    "memory_get_node",
    "memory_query_node",
    "memory_search_node",
    "memory_update_node",
    "memory_write_node",
]

_HOMES = {
    "memplane.contracts": (
        "CallOptions",
        "EmbeddingProvider",
        "MemorySearchProvider",
        "MemoryStore",
        "NodeResult",
        "Scope",
        "StoreBackend",
    ),
    "memplane.errors": ("NodeFailed", "PluginError"),
    "memplane.signal": ("Signal",),
    "memplane.nodes": tuple(name for name in __all__ if name.startswith(("create_", "memory_"))),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
