"""The MySQL store keeps the contract and the platform's promises, on a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from memplane.conformance import PlatformConformance, StoreConformance
from memplane.contracts import StoreBackend
from memplane.plugins.mysql.backend import MysqlBackend
from memplane.plugins.mysql.settings import MysqlSettings


class TestMysql(StoreConformance, PlatformConformance):
    @pytest.fixture
    async def backend(self, module_mysql_dsn: str) -> AsyncIterator[StoreBackend]:  # type: ignore[override]
        backend = MysqlBackend(MysqlSettings.model_validate({"dsn": module_mysql_dsn}))
        await backend.start()
        yield backend
        await backend.close()
