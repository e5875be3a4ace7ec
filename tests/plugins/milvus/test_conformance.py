"""The Milvus store keeps the contract and the platform's promises, on a real server, as far as it declares them."""

from __future__ import annotations

import pytest

from memplane.conformance import PlatformConformance, StoreConformance
from memplane.contracts import StoreBackend
from memplane.plugins.milvus.backend import MilvusBackend


class TestMilvus(StoreConformance, PlatformConformance):
    pytestmark = pytest.mark.asyncio(loop_scope="module")

    @pytest.fixture
    def backend(self, milvus_backend: MilvusBackend) -> StoreBackend:  # type: ignore[override]
        return milvus_backend
