"""Node workers beside MEMORY: CONTEXT, INFER and INTERACTION. Source: design section 3.

`PostgresContextStore` needs the extra `postgres` and is imported on first use.
"""

from typing import TYPE_CHECKING, Any

from memplane.workers.context.errors import ContextError
from memplane.workers.context.operations import ContextOperations, ReferenceResolver
from memplane.workers.context.state import (
    ContextOperationQueue,
    ContextStateStore,
    InMemoryContextStore,
    StoredContext,
)
from memplane.workers.context.worker import create_context, create_context_worker
from memplane.workers.infer.openai_chat import OpenAIChatProvider
from memplane.workers.infer.sample import Infer, ModelProvider
from memplane.workers.infer.worker import create_infer, create_infer_worker
from memplane.workers.interaction.errors import InteractionError
from memplane.workers.interaction.mcp import McpClient
from memplane.workers.interaction.observe import observe
from memplane.workers.interaction.output import OutputSink
from memplane.workers.interaction.tools import Tool, ToolRegistry
from memplane.workers.interaction.worker import create_interaction_worker

if TYPE_CHECKING:
    from memplane.workers.context.postgres_state import PostgresContextStore

__all__ = [
    "ContextError",
    "ContextOperationQueue",
    "ContextOperations",
    "ContextStateStore",
    "InMemoryContextStore",
    "Infer",
    "InteractionError",
    "McpClient",
    "ModelProvider",
    "OpenAIChatProvider",
    "OutputSink",
    "PostgresContextStore",
    "ReferenceResolver",
    "StoredContext",
    "Tool",
    "ToolRegistry",
    "create_context",
    "create_context_worker",
    "create_infer",
    "create_infer_worker",
    "create_interaction_worker",
    "observe",
]


def __getattr__(name: str) -> Any:
    if name == "PostgresContextStore":
        from memplane.workers.context.postgres_state import PostgresContextStore

        return PostgresContextStore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
