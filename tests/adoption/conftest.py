"""Databases with a table from before memplane."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import asyncpg
import pytest

from memplane.schema.database import Database
from memplane.settings import AdoptionSettings, PostgresSettings
from tests.adoption.old_application import SHAPES, make_table


@dataclass
class OldWorld:
    """An old table, not adopted yet. `sql` is the old application's own connection."""

    settings: PostgresSettings
    shape: str
    adoption: AdoptionSettings
    database: Database
    sql: asyncpg.Connection

    @property
    def dsn(self) -> str:
        assert self.settings.dsn is not None
        return self.settings.dsn.get_secret_value()

    async def value(self, statement: str, *arguments: object) -> Any:
        return await self.sql.fetchval(statement, *arguments)


MakeWorld = Callable[..., Awaitable[OldWorld]]


def adoption_settings(shape: str, **more: Any) -> AdoptionSettings:
    scale = 12 if shape == "renamed" else 1
    defaults = {"lock_timeout_seconds": 0.2, "lock_attempts": 20, "importance_scale": scale, "quiet_seconds": 0}
    return AdoptionSettings.model_validate({"columns": SHAPES[shape]["map"], **defaults, **more})


@pytest.fixture
async def old_world(empty_postgres_settings: PostgresSettings) -> AsyncIterator[MakeWorld]:
    """Makes the old table of a shape with so many rows."""
    made: list[OldWorld] = []

    async def make(shape: str, rows: int = 300, *, schema: str = "memplane", **more: Any) -> OldWorld:
        assert empty_postgres_settings.dsn is not None
        placed = empty_postgres_settings.model_copy(update={"schema_name": schema})
        connection = await asyncpg.connect(empty_postgres_settings.dsn.get_secret_value())
        if shape in SHAPES:
            await make_table(connection, shape, rows, schema)
        database = Database(placed, application_name="memplane-tests")
        settings = adoption_settings(shape, **more) if shape in SHAPES else AdoptionSettings(**more)
        world = OldWorld(placed, shape, settings, database, connection)
        made.append(world)
        return world

    yield make
    for world in made:
        await world.sql.close()
        await world.database.close()
