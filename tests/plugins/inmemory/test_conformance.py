"""The in-memory store keeps the contract and the platform's promises."""

from __future__ import annotations

import pytest

from memplane.conformance import PlatformConformance, StoreConformance
from memplane.contracts import StoreBackend
from memplane.plugins.inmemory import InMemoryBackend


class TestInMemory(StoreConformance, PlatformConformance):
    @pytest.fixture
    def backend(self) -> StoreBackend:
        return InMemoryBackend()
