"""`create_retrieval_memory_search_provider`: a retrieval pipeline inside MEMORY, without a worker (R-25, R-26)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from memplane.contracts import CallOptions, SearchHit, SearchInput
from memplane.retrieval.bridges.candidates import MapOutput, mapped
from memplane.retrieval.bridges.requests import retrieval_input
from memplane.retrieval.defaults import RetrievalDefaults, check_defaults, effective
from memplane.retrieval.documents import RetrievalContext, RetrievalProvider, RetrievalTarget
from memplane.retrieval.outputs import check_output
from memplane.retrieval.requests import check_strategy, read_request, read_target


class RetrievalMemorySearchProvider:
    """Made by `create_retrieval_memory_search_provider`."""

    def __init__(
        self,
        provider: RetrievalProvider,
        target: RetrievalTarget,
        defaults: RetrievalDefaults,
        strategy: str | None,
        map_output: MapOutput | None,
    ) -> None:
        self._provider = provider
        self._target = target
        self._defaults = defaults
        self._strategy = strategy
        self._map_output = map_output

    async def search(self, input: SearchInput, options: CallOptions) -> Sequence[SearchHit]:  # noqa: A002
        request = read_request(retrieval_input(input, self._target), self._defaults.search_limit)
        if self._strategy is not None:
            request.setdefault("strategy", self._strategy)
        context = RetrievalContext(options.signal, options.runtime, self._defaults)
        output = check_output(request, await self._provider.search(request, context))
        return await mapped(output, self._map_output)


def create_retrieval_memory_search_provider(
    *,
    provider: RetrievalProvider,
    target: RetrievalTarget | Mapping[str, Any],
    defaults: Mapping[str, Any] | None = None,
    strategy: str | None = None,
    map_output: MapOutput | None = None,
) -> RetrievalMemorySearchProvider:
    """A `MemorySearchProvider` that runs a pipeline in this process, with the checks that a RETRIEVAL worker makes.

    The same provider behind a worker gives the same hits. strategy: used when a search names none. target and defaults
    are copied and checked now (RETRIEVAL_INVALID_INPUT).
    """
    return RetrievalMemorySearchProvider(
        provider,
        read_target(target),
        effective(check_defaults(defaults)),
        None if strategy is None else check_strategy(strategy),
        map_output,
    )
