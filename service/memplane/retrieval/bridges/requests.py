"""From a MEMORY.SEARCH input to a RETRIEVAL.SEARCH input and back. What is absent stays absent (case R-17)."""

from __future__ import annotations

from typing import Any

from memplane.contracts import SearchInput
from memplane.retrieval.documents import RetrievalRequest, RetrievalTarget


def retrieval_input(input: SearchInput, target: RetrievalTarget) -> dict[str, Any]:  # noqa: A002 - the wire's name
    """The request that a memory search becomes."""
    request: dict[str, Any] = {"query": {"content": input["query"]}, "target": target}
    for field in ("strategy", "filter", "limit", "options"):
        if field in input:
            request[field] = input[field]
    return request


def memory_input(request: RetrievalRequest) -> SearchInput:
    """The memory search that a request becomes."""
    search: SearchInput = {"query": request["query"]["content"], "limit": request["limit"]}
    if "strategy" in request:
        search["strategy"] = request["strategy"]
    if "filter" in request:
        search["filter"] = request["filter"]
    if "options" in request:
        search["options"] = request["options"]
    return search
