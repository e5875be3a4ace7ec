"""What all parts of the suite share: fixtures and a few ways to write and read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import pytest

from memplane.contracts import MemoryItem, MemorySearchProvider, NodeResult, Scope, SearchBackend, StoreBackend
from memplane.nodes import Memory, create_memory


class Bench:
    """A backend with scopes to work in. `own` is the test's scope; others share its tenant or its user, never both."""

    def __init__(self, backend: StoreBackend, search: SearchBackend | None) -> None:
        self.backend = backend
        self._search = search
        token = uuid4().hex
        self.scope = Scope(f"tenant-{token}", f"user-{token}")
        self.own = self.memory(self.scope)
        self.same_tenant = self.memory(Scope(self.scope.tenant, f"other-{token}"))
        self.same_user = self.memory(Scope(f"other-{token}", self.scope.user))

    def memory(self, scope: Scope) -> Memory:
        """The SDK on a store of this scope, newly cut from the backend."""
        search: MemorySearchProvider | None = None if self._search is None else self._search.scoped(scope)
        return create_memory(store=self.backend.scoped(scope), search=search)

    def promises(self, capability: str) -> Sequence[str]:
        """A list of the capabilities document; absent means empty."""
        return self.backend.capabilities.get(capability, ())  # type: ignore[return-value]

    @property
    def atomic(self) -> bool:
        return bool(self.backend.capabilities.get("atomicBatches", False))


class ConformanceBase:
    """Fixtures. A subclass overrides `backend`, and `search` and `settle` where they differ."""

    @pytest.fixture
    def backend(self) -> StoreBackend:
        """A started backend. Every suite gives its own."""
        raise NotImplementedError("override the fixture `backend` with a started StoreBackend")

    @pytest.fixture
    def search(self) -> SearchBackend | None:
        """A started search backend that replaces the store's own search; None for none."""
        return None

    @pytest.fixture
    def bench(self, backend: StoreBackend, search: SearchBackend | None) -> Bench:
        return Bench(backend, search)

    @pytest.fixture
    def strategies(self, bench: Bench) -> Sequence[str]:
        """The search strategies that are promised."""
        return bench.promises("strategies")

    async def settle(self) -> None:
        """Wait until searches see what was written; nothing to do for a search on the store itself."""


async def write(memory: Memory, *drafts: dict[str, Any]) -> list[MemoryItem]:
    """Write drafts in one batch; the new items in order."""
    return list((await memory.write({"memories": list(drafts)})).unwrap())


async def everything(memory: Memory, **request: Any) -> list[MemoryItem]:
    """All items of a query, over as many pages as it takes."""
    items: list[MemoryItem] = []
    cursor: str | None = None
    while True:
        page = (await memory.query({**request, **({} if cursor is None else {"cursor": cursor})})).unwrap()
        items += page["items"]
        cursor = page.get("nextCursor")
        if cursor is None:
            return items
        assert page["items"], "a page with a nextCursor must not be empty"


def ids(items: Sequence[MemoryItem]) -> list[str]:
    return [item["id"] for item in items]


def code(result: NodeResult[Any]) -> str:
    """The error code of a result, "success" if it is one."""
    return result.error.code if result.error is not None else result.status
