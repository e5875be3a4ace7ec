"""`RemoteRetrievalSearchProvider`: MEMORY.SEARCH delegated to RETRIEVAL.SEARCH of a runtime (cases R-17 to R-22)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from memplane.contracts import CallOptions, NodeInvoker, NodeResult, SearchHit, SearchInput
from memplane.errors import RetrievalError
from memplane.nodes.shapes import is_object
from memplane.retrieval.bridges.candidates import MapOutput, mapped
from memplane.retrieval.bridges.requests import retrieval_input
from memplane.retrieval.documents import NODE, RetrievalOutput, RetrievalTarget
from memplane.retrieval.errors import BACKEND_ERROR
from memplane.retrieval.requests import read_target


class RemoteRetrievalSearchProvider:
    """A `MemorySearchProvider`. It may run anywhere a RETRIEVAL worker is routed to: this process, or across HTTP.

    target: copied and checked now. runtime: always used when given; without it the runtime of the call, which a MEMORY
    worker supplies. map_output: makes hits of the whole output, may be asynchronous, is not called after a failure; by
    default candidates must contain whole memories.

    Raises RETRIEVAL_BACKEND_ERROR, never with a text of the other side, which MEMORY shows as MEMORY_BACKEND_ERROR.
    """

    def __init__(
        self,
        *,
        target: RetrievalTarget | Mapping[str, Any],
        runtime: NodeInvoker | None = None,
        map_output: MapOutput | None = None,
    ) -> None:
        self._target = read_target(target)
        self._runtime = runtime
        self._map_output = map_output

    async def search(self, input: SearchInput, options: CallOptions) -> Sequence[SearchHit]:  # noqa: A002
        runtime = self._runtime if self._runtime is not None else options.runtime
        if runtime is None:
            raise RetrievalError(BACKEND_ERROR, "Remote retrieval invocation failed")
        request = retrieval_input(input, read_target(self._target))
        try:
            result = await runtime.invoke(NODE, request, signal=options.signal)
        except Exception:  # noqa: BLE001 - whatever routing, transport or the other side raised, its text stays here
            raise RetrievalError(BACKEND_ERROR, "Remote retrieval invocation failed") from None
        return await mapped(_output(result), self._map_output)


def _output(result: Any) -> RetrievalOutput:
    """The output of a success, from a `NodeResult` or its wire object."""
    status, output = None, None
    if isinstance(result, NodeResult):
        status, output = result.status, result.output
    elif is_object(result):
        status, output = result.get("status"), result.get("output")
    if status != "success" or not is_object(output):
        raise RetrievalError(BACKEND_ERROR, "Remote retrieval operation failed")
    return cast(RetrievalOutput, output)
