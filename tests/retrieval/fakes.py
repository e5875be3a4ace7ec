"""A provider that records what it sees, and an embedding with a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from memplane.contracts import Purpose
from memplane.retrieval import RetrievalContext, RetrievalTargetRegistry
from memplane.signal import Signal


class Provider:
    """Answers with candidates, an exception, or the result of a function of (request, context)."""

    def __init__(self, answer: Any = ()) -> None:
        self.answer = answer
        self.requests: list[Any] = []
        self.contexts: list[RetrievalContext] = []

    async def search(self, request: Any, context: RetrievalContext) -> Any:
        self.requests.append(request)
        self.contexts.append(context)
        answer = self.answer(request, context) if callable(self.answer) else self.answer
        if isinstance(answer, BaseException):
            raise answer
        if isinstance(answer, tuple):
            return {"candidates": list(answer), "target": request["target"]}
        return answer


class Embedding:
    model = "table"
    revision = "1"

    def __init__(self, table: Mapping[Any, Sequence[float]], dimensions: int | None = None) -> None:
        self.table = table
        self.dimensions = dimensions
        self.calls: list[tuple[list[Any], str]] = []

    async def embed(self, contents: Sequence[Any], *, purpose: Purpose, signal: Signal | None = None) -> Any:
        self.calls.append((list(contents), purpose))
        return [self.table[content] for content in contents]


def registry(provider: Any, strategy: str = "vector", **more: Any) -> RetrievalTargetRegistry:
    return RetrievalTargetRegistry({"docs": {"defaultStrategy": strategy, "providers": {strategy: provider, **more}}})


def ask(**fields: Any) -> dict[str, Any]:
    return {"query": {"content": "x"}, "target": {"name": "docs"}, **fields}


def fault(result: Any) -> tuple[str, str]:
    assert result.output is None
    return (result.status, result.error.code)


Answer = Callable[[Any, RetrievalContext], Any]
