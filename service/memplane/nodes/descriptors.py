"""The six node descriptors: a node's id, and how to give it another handler (case M-65)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memplane.runtime import Handler, NodeDefinition

WORKER_TYPE = "MEMORY"


@dataclass(frozen=True, slots=True)
class NodeDescriptor:
    """Names a node. `define(worker_type, handler)` gives what `define_worker` takes as a value of `nodes`.

    A replacement handler answers for the whole contract itself: it returns a `NodeResult`.
    """

    type: str

    def define(self, worker_type: str, handler: Handler) -> NodeDefinition:
        from memplane.runtime import NodeDefinition

        return NodeDefinition(id=self.type, worker_type=worker_type, handler=handler)


memory_get_node = NodeDescriptor("MEMORY.GET")
memory_query_node = NodeDescriptor("MEMORY.QUERY")
memory_search_node = NodeDescriptor("MEMORY.SEARCH")
memory_write_node = NodeDescriptor("MEMORY.WRITE")
memory_update_node = NodeDescriptor("MEMORY.UPDATE")
memory_delete_node = NodeDescriptor("MEMORY.DELETE")
