"""The backend's identity notices copies of its database."""

from __future__ import annotations

from uuid import uuid4

import pytest
from pydantic import SecretStr

from memplane.errors import IdentityError
from memplane.schema.database import Database
from memplane.schema.identity import ensure_identity, read_identity, renew_identity
from memplane.schema.migrate import migrate
from memplane.settings import PostgresSettings


@pytest.fixture
async def clone(postgres_settings: PostgresSettings):
    """A copy of a migrated database, as CREATE DATABASE … TEMPLATE or a restored dump makes it."""
    assert postgres_settings.dsn is not None
    dsn = postgres_settings.dsn.get_secret_value()
    source = dsn.rsplit("/", 1)[1].split("?")[0]
    name = f"memplane_clone_{uuid4().hex[:12]}"
    maintenance = Database(postgres_settings.model_copy(update={"dsn": SecretStr(dsn.replace(source, "postgres"))}))
    copy = Database(postgres_settings.model_copy(update={"dsn": SecretStr(dsn.replace(source, name))}))
    async with maintenance.acquire() as connection:
        await connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{source}"')
        yield copy
        await copy.close()
        await connection.execute(f'DROP DATABASE "{name}"')
    await maintenance.close()


async def test_the_identity_is_stable(database):
    first = await ensure_identity(database)

    assert await ensure_identity(database) == first
    assert await read_identity(database) == first
    assert await migrate(database) == []
    assert await read_identity(database) == first


async def test_a_clone_is_refused_until_it_gets_its_own_identity(clone, database):
    original = await read_identity(database)
    for use in (read_identity, ensure_identity, migrate):
        with pytest.raises(IdentityError, match="--new-identity"):
            await use(clone)

    renewed = await renew_identity(clone)

    assert renewed != original
    assert await read_identity(clone) == renewed
    assert await migrate(clone) == []
    assert await read_identity(database) == original


async def test_a_moved_database_may_keep_its_id(clone, database):
    assert await renew_identity(clone, keep_id=True) == await read_identity(database)
    assert await read_identity(clone) == await read_identity(database)


async def test_another_server_is_noticed(database):
    async with database.acquire() as connection:
        await connection.execute(database.sql("UPDATE {schema}.backend_identity SET system_identifier = '1'"))

    with pytest.raises(IdentityError):
        await read_identity(database)


async def test_a_hardened_server_is_an_error_with_its_cure(database):
    async with database.acquire() as connection:
        await connection.execute("REVOKE EXECUTE ON FUNCTION pg_catalog.pg_control_system() FROM PUBLIC")
        await connection.execute("CREATE ROLE hardened NOLOGIN")
        await connection.execute(database.sql("GRANT USAGE ON SCHEMA {schema} TO hardened"))
        await connection.execute(database.sql("GRANT SELECT ON {schema}.backend_identity TO hardened"))
        await connection.execute("SET ROLE hardened")
        try:
            from memplane.schema.identity import read_identity_on

            with pytest.raises(IdentityError, match="GRANT EXECUTE ON FUNCTION"):
                await read_identity_on(connection, database)
        finally:
            await connection.execute("RESET ROLE")
            await connection.execute("DROP OWNED BY hardened")
            await connection.execute("DROP ROLE hardened")
