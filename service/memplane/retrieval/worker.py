"""`create_retrieval_worker`: RETRIEVAL.SEARCH inside a runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memplane.contracts import NodeResult
from memplane.nodes.descriptors import NodeDescriptor
from memplane.retrieval.documents import NODE, RetrievalOutput, RetrievalProviders
from memplane.retrieval.retrieval import create_retrieval
from memplane.runtime import WorkerContext, WorkerDefinition, define_worker

WORKER_TYPE = "RETRIEVAL"

retrieval_search_node = NodeDescriptor(NODE)


def create_retrieval_worker(
    *,
    providers: RetrievalProviders,
    defaults: Mapping[str, Any] | None = None,
    concurrency: int | None = None,
) -> WorkerDefinition:
    """A worker of type RETRIEVAL with the one node. Its defaults rank above the runtime's YAML (`workers.retrieval`).

    Raises what `create_retrieval` raises, and `DefinitionError` for a concurrency that is no positive integer.
    """
    retrieval = create_retrieval(providers=providers, defaults=defaults)

    async def search(input: Any, ctx: WorkerContext) -> NodeResult[RetrievalOutput]:  # noqa: A002
        config = ctx.services.get("config")
        yaml = None if config is None else config.retrieval
        return await retrieval.search(input, defaults=yaml, signal=ctx.signal, runtime=ctx)

    nodes = {NODE: retrieval_search_node.define(WORKER_TYPE, search)}
    return define_worker(type=WORKER_TYPE, nodes=nodes, concurrency=concurrency)
