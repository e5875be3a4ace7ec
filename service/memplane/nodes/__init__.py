"""The six MEMORY nodes: checked input, one plugin call, checked output, one `NodeResult`. Source: seed `000`.

A node adds nothing to what the plugin does: no retry, no second read, no embedding. What it does guarantee is that a
plugin sees only well-formed input and a caller only well-formed output, and that no driver's text gets out.
"""

from typing import TYPE_CHECKING, Any

from memplane.nodes.descriptors import (
    NodeDescriptor,
    memory_delete_node,
    memory_get_node,
    memory_query_node,
    memory_search_node,
    memory_update_node,
    memory_write_node,
)
from memplane.nodes.limits import InvalidDefaults
from memplane.nodes.memory import Memory, create_memory

if TYPE_CHECKING:
    from memplane.nodes.worker import create_memory_worker

__all__ = [
    "InvalidDefaults",
    "Memory",
    "NodeDescriptor",
    "create_memory",
    "create_memory_worker",
    "memory_delete_node",
    "memory_get_node",
    "memory_query_node",
    "memory_search_node",
    "memory_update_node",
    "memory_write_node",
]


def __getattr__(name: str) -> Any:
    # The SDK without the runtime starts several times faster: the worker alone needs it.
    if name != "create_memory_worker":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from memplane.nodes.worker import create_memory_worker

    return create_memory_worker
