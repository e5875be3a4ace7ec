"""A started backend on this test's own database."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from memplane.plugins.mysql.backend import MysqlBackend
from memplane.plugins.mysql.settings import MysqlSettings


@pytest.fixture
async def backend(mysql_settings: MysqlSettings) -> AsyncIterator[MysqlBackend]:
    backend = MysqlBackend(mysql_settings)
    await backend.start()
    yield backend
    await backend.close()
