"""The whole contract, checked on the example store with a few lines. Run: pytest -o asyncio_mode=auto"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from memplane.conformance import StoreConformance
from memplane.contracts import StoreBackend
from memplane.plugins.registry import Resources, create_store


class TestSqlite(StoreConformance):
    @pytest.fixture
    async def backend(self, tmp_path: Path) -> AsyncIterator[StoreBackend]:
        backend = create_store("sqlite", {"path": str(tmp_path / "memories.db")}, Resources())
        await backend.start()
        yield backend
        await backend.close()
