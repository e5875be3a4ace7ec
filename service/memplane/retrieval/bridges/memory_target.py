"""`create_memory_retrieval_provider`: a memory search as a target of RETRIEVAL (cases R-23, R-24)."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable

from memplane.contracts import CallOptions, MemorySearchProvider, SearchInput
from memplane.retrieval.bridges.candidates import hits_of, memory_candidate
from memplane.retrieval.bridges.requests import memory_input
from memplane.retrieval.documents import RetrievalContext, RetrievalOutput, RetrievalRequest
from memplane.retrieval.errors import invalid_input

MapInput = Callable[[RetrievalRequest], "SearchInput | Awaitable[SearchInput]"]


class MemoryRetrievalProvider:
    """Made by `create_memory_retrieval_provider`."""

    def __init__(self, search: MemorySearchProvider, map_input: MapInput | None) -> None:
        self._search = search
        self._map_input = map_input

    async def search(self, request: RetrievalRequest, context: RetrievalContext) -> RetrievalOutput:
        asked = await self._input(request)
        hits = await self._search.search(asked, CallOptions(context.signal, context.runtime))
        name = request["target"]["name"]
        output: RetrievalOutput = {
            "candidates": [memory_candidate(hit, name) for hit in hits_of(hits)],
            "target": request["target"],
        }
        if "strategy" in request:
            output["strategy"] = request["strategy"]
        return output

    async def _input(self, request: RetrievalRequest) -> SearchInput:
        if self._map_input is None:
            if "namespace" in request["target"]:
                # A memory's scope comes from its credential: a namespace that is ignored would look like isolation.
                raise invalid_input("Memory namespace requires an explicit input mapper")
            return memory_input(request)
        asked = self._map_input(request)
        return await asked if inspect.isawaitable(asked) else asked


def create_memory_retrieval_provider(
    search: MemorySearchProvider, map_input: MapInput | None = None
) -> MemoryRetrievalProvider:
    """A `RetrievalProvider` on a memory search, a store's own or any other.

    Each hit becomes `{id, content: the whole memory, source: {target, ref: id}, score?, metadata?}`. map_input makes
    the search's input from the request and is needed for targets with a namespace (else RETRIEVAL_INVALID_INPUT).
    """
    return MemoryRetrievalProvider(search, map_input)
