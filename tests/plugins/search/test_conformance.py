"""The platform's searches beside the PostgreSQL store keep the contract, on real servers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from memplane.conformance import SearchConformance
from memplane.contracts import SearchBackend, StoreBackend
from memplane.plugins.registry import Resources
from memplane.plugins.search.native import plugin as native
from memplane.plugins.search.settings import NativeSettings
from tests.plugins.search.world import World


class TestHybridSearch(SearchConformance):
    """Vector, keyword and graph branches; the projections are brought up to date where a test says `settle`."""

    pytestmark = pytest.mark.asyncio(loop_scope="module")
    world: World

    @pytest.fixture
    def backend(self, world: World) -> StoreBackend:  # type: ignore[override]
        self.world = world
        return world.store

    @pytest.fixture
    def search(self, world: World) -> SearchBackend | None:  # type: ignore[override]
        return world.search_backend()

    @pytest.fixture
    def strategies(self) -> Sequence[str]:  # type: ignore[override]
        return ("vector", "keyword", "graph", "hybrid")

    async def settle(self) -> None:
        await self.world.project()


class TestHybridSearchBeforeProjection(TestHybridSearch):
    """The same without waiting: what is not yet projected is merged into the hits."""

    async def settle(self) -> None:
        """Searches must see what was written at once."""


class TestNativeSearch(TestHybridSearch):
    """Keywords alone, as the PostgreSQL store finds them itself."""

    @pytest.fixture
    def search(self, world: World) -> SearchBackend | None:
        return native.create(NativeSettings(), Resources(database=world.database))

    @pytest.fixture
    def strategies(self) -> Sequence[str]:
        return ("keyword",)
