"""Migrations on a real server: parallel, forward only, and old releases beside newer schemas."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest
from pydantic import SecretStr

from memplane.errors import SchemaError
from memplane.schema.database import Database
from memplane.schema.identity import read_identity
from memplane.schema.migrate import Migration, check, migrate, migrations
from memplane.settings import PostgresSettings

CATALOG = """
SELECT 'column' AS kind, table_name || '.' || column_name AS name,
       concat_ws(' ', data_type, is_nullable, column_default, ordinal_position) AS definition
FROM information_schema.columns WHERE table_schema = $1
UNION ALL SELECT 'index', indexname, indexdef FROM pg_indexes WHERE schemaname = $1
UNION ALL SELECT 'constraint', conname, pg_get_constraintdef(c.oid) FROM pg_constraint AS c
    JOIN pg_namespace AS n ON n.oid = c.connamespace WHERE n.nspname = $1
UNION ALL SELECT 'function', p.proname, pg_get_functiondef(p.oid) FROM pg_proc AS p
    JOIN pg_namespace AS n ON n.oid = p.pronamespace WHERE n.nspname = $1
ORDER BY 1, 2
"""


@pytest.fixture
async def empty(empty_postgres_settings: PostgresSettings):
    database = Database(empty_postgres_settings)
    yield database
    await database.close()


async def catalog(database: Database) -> list[tuple[str, ...]]:
    async with database.acquire() as connection:
        return [tuple(row) for row in await connection.fetch(CATALOG, database.settings.schema_name)]


async def test_parallel_runs_apply_each_migration_once(empty):
    results = await asyncio.gather(*(migrate(empty) for _ in range(5)))

    names = [migration.name for migration in migrations()]
    assert sorted(results, key=len)[-1] == names
    assert sum(len(result) for result in results) == len(names)
    assert await check(empty) == len(names)
    assert await read_identity(empty)


async def test_migrating_step_by_step_gives_the_same_schema(empty, database):
    known = migrations()
    for count in range(1, len(known) + 1):
        assert await migrate(empty, known[:count]) == [known[count - 1].name]

    assert await catalog(empty) == await catalog(database)


async def test_the_tables_carry_the_columns_of_the_seed(database):
    names = {name for kind, name, _ in await catalog(database) if kind == "column"}
    memory = {"id", "user_id", "content", "importance", "category", "tags", "slot_hint", "version", "updated_at"}
    memory |= {"deleted_at", "content_hash", "embedding_model", "embedding_revision"}
    outbox = {"id", "event_id", "aggregate_id", "user_id", "aggregate_version", "event_type", "target", "payload"}
    outbox |= {"status", "attempts", "available_at", "locked_at", "locked_by", "processed_at", "last_error"}
    outbox |= {"created_at"}

    assert {f"long_term_memory.{column}" for column in memory} <= names
    assert {f"memory_outbox.{column}" for column in outbox} <= names


async def test_an_unmigrated_database_is_told_apart(empty):
    with pytest.raises(SchemaError, match="memplane migrate"):
        await check(empty)
    with pytest.raises(SchemaError, match="memplane migrate"):
        await read_identity(empty)


async def test_a_schema_behind_the_release_is_refused(empty):
    known = migrations()
    await migrate(empty, known[:1])

    with pytest.raises(SchemaError, match="level 1"):
        await check(empty, known)


async def test_a_changed_file_is_refused(database):
    known = migrations()
    changed = (replace(known[0], text=known[0].text + "-- edited"), *known[1:])

    for run in (migrate, check):
        with pytest.raises(SchemaError, match=known[0].name):
            await run(database, changed)


async def test_an_older_release_leaves_a_newer_schema_alone_and_serves(database):
    known = migrations()
    level = len(known) + 1
    newer = Migration(level, f"{level:04}_newer", "ALTER TABLE {schema}.memory_edge ADD COLUMN note TEXT")
    await migrate(database, (*known, newer))

    assert await migrate(database, known) == []
    assert await check(database, known) == level


async def test_a_release_below_the_floor_is_refused(database):
    known = migrations()
    level = len(known) + 1
    enforcing = Migration(level, f"{level:04}_enforce", f"-- min-compatible-code: {level}\nSELECT 1")
    await migrate(database, (*known, enforcing))

    assert await migrate(database, known) == []
    with pytest.raises(SchemaError, match="too old"):
        await check(database, known)


async def test_a_failing_migration_leaves_nothing_behind(database):
    known = migrations()
    level = len(known) + 1
    text = "CREATE TABLE {schema}.half (id INT); SELECT 1 / 0"
    before = await catalog(database)

    with pytest.raises(asyncpg.DivisionByZeroError):
        await migrate(database, (*known, Migration(level, f"{level:04}_broken", text)))

    assert await catalog(database) == before
    assert await check(database) == len(known)


def with_user(settings: PostgresSettings, user: str, password: str, schema: str) -> PostgresSettings:
    assert settings.dsn is not None
    parts = urlsplit(settings.dsn.get_secret_value())
    netloc = f"{user}:{password}@{parts.hostname}:{parts.port}"
    return settings.model_copy(
        update={"dsn": SecretStr(urlunsplit(parts._replace(netloc=netloc))), "schema_name": schema}
    )


@pytest.fixture
async def role(empty: Database):
    """A role without any right but to log in."""
    async with empty.acquire() as connection:
        name = f"owner_{await connection.fetchval('SELECT current_database()')}"
        await connection.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'only-for-tests'")
        yield name
        await connection.execute(f"DROP OWNED BY {name}")
        await connection.execute(f"DROP ROLE {name}")


async def test_a_plain_role_that_owns_the_schema_can_migrate(empty, role):
    async with empty.acquire() as connection:
        await connection.execute(f"CREATE SCHEMA given AUTHORIZATION {role}")
    database = Database(with_user(empty.settings, role, "only-for-tests", "given"))
    try:
        assert await migrate(database)
        assert await migrate(database) == []
        await check(database)
    finally:
        await database.close()


async def test_a_role_that_may_not_create_the_schema_is_told_so(empty, role):
    database = Database(with_user(empty.settings, role, "only-for-tests", "missing"))
    try:
        with pytest.raises(SchemaError, match="GRANT CREATE ON DATABASE"):
            await migrate(database)
    finally:
        await database.close()
