"""A store and a search plugin that record what they see and answer what the test says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memplane.contracts import CallOptions

Answer = Callable[[Any, CallOptions], Any]


class Recorder:
    """Every method of the plugin protocols; `calls` holds (method, input, options) in order."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.calls: list[tuple[str, Any, CallOptions]] = []

    async def _call(self, method: str, input: Any, options: CallOptions) -> Any:
        self.calls.append((method, input, options))
        answer = self.answers.get(method)
        if isinstance(answer, BaseException):
            raise answer
        return answer(input, options) if callable(answer) else answer

    def inputs(self, method: str) -> list[Any]:
        return [seen for name, seen, _ in self.calls if name == method]


class CrudStore(Recorder):
    async def get(self, input: Any, options: CallOptions) -> Any:
        return await self._call("get", input, options)

    async def query(self, input: Any, options: CallOptions) -> Any:
        return await self._call("query", input, options)

    async def write(self, input: Any, options: CallOptions) -> Any:
        return await self._call("write", input, options)

    async def update(self, input: Any, options: CallOptions) -> Any:
        return await self._call("update", input, options)

    async def delete(self, input: Any, options: CallOptions) -> Any:
        return await self._call("delete", input, options)


class Searcher(Recorder):
    async def search(self, input: Any, options: CallOptions) -> Any:
        return await self._call("search", input, options)


class SearchingStore(CrudStore, Searcher):
    pass
