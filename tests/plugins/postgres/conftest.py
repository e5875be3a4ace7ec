"""Stores of several scopes on this test's own database."""

from __future__ import annotations

import pytest
from tests.plugins.postgres.calls import Calls

from memplane.contracts import Scope
from memplane.outbox.events import Target
from memplane.plugins.postgres import PostgresBackend
from memplane.schema.database import Database

ME = Scope("tenant", "me")


@pytest.fixture
async def backend(database: Database) -> PostgresBackend:
    backend = PostgresBackend(database, targets=list(Target))
    await backend.start()
    return backend


@pytest.fixture
def store(backend: PostgresBackend) -> Calls:
    return Calls(backend.scoped(ME))
