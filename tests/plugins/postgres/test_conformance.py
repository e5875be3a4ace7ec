"""The PostgreSQL store keeps the contract and the platform's promises, on a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from memplane.conformance import PlatformConformance, StoreConformance
from memplane.contracts import StoreBackend
from memplane.outbox.events import Target
from memplane.plugins.postgres import PostgresBackend
from memplane.schema.database import Database
from memplane.settings import PostgresSettings


class TestPostgres(StoreConformance, PlatformConformance):
    @pytest.fixture
    async def backend(self, module_postgres_settings: PostgresSettings) -> AsyncIterator[StoreBackend]:  # type: ignore[override]
        database = Database(module_postgres_settings, application_name="memplane-conformance")
        backend = PostgresBackend(database, targets=list(Target))
        await backend.start()
        yield backend
        await backend.close()
        await database.close()
