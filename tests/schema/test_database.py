"""The pool: rotated credentials, servers that are not there, transactions that fail, state that stays out."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from memplane.errors import SettingsError, TargetUnavailable
from memplane.schema.database import Database
from memplane.settings import PostgresSettings


def dsn_of(settings: PostgresSettings) -> str:
    assert settings.dsn is not None
    return settings.dsn.get_secret_value()


def with_login(dsn: str, user: str, password: str) -> str:
    parts = urlsplit(dsn)
    return urlunsplit(parts._replace(netloc=f"{user}:{password}@{parts.hostname}:{parts.port}"))


async def test_a_rotated_password_takes_effect_without_a_restart(database, postgres_settings, tmp_path: Path):
    async with database.acquire() as admin:
        role = f"rotating_{await admin.fetchval('SELECT current_database()')}"
        await admin.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'first'")
        file = tmp_path / "dsn"
        file.write_text(with_login(dsn_of(postgres_settings), role, "first") + "\n")
        rotating = Database(postgres_settings.model_copy(update={"dsn": None, "dsn_file": file}))
        async with rotating.acquire() as connection:
            assert await connection.fetchval("SELECT current_user") == role

        await admin.execute(f"ALTER ROLE {role} PASSWORD 'second'")
        await admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1", role)
        with pytest.raises(TargetUnavailable, match="credentials"):
            await use_until_refused(rotating)
        with pytest.raises(TargetUnavailable, match="credentials"):
            await rotating.open()

        file.write_text(with_login(dsn_of(postgres_settings), role, "second"))
        async with rotating.acquire() as connection:
            assert await connection.fetchval("SELECT current_user") == role
        await rotating.close()
        await admin.execute(f"DROP ROLE {role}")


async def use_until_refused(database: Database) -> None:
    """The killed connection may be handed out once more before its end is noticed."""
    for _ in range(20):
        try:
            async with database.acquire() as connection:
                await connection.fetchval("SELECT 1")
        except (asyncpg.PostgresConnectionError, asyncpg.InterfaceError, asyncpg.InternalClientError):
            continue


@pytest.mark.parametrize(
    ("dsn", "reason"),
    [
        ("postgresql://u:p@127.0.0.1:1/x", "does not accept connections"),
        ("postgresql://u:p@host.invalid:5432/x", "does not accept connections"),
    ],
)
async def test_a_server_that_is_not_there(dsn, reason):
    database = Database(PostgresSettings(dsn=dsn, connect_timeout=3))
    for use in (database.open, database.connect_direct):
        with pytest.raises(TargetUnavailable, match=reason) as caught:
            await use()
        assert "u:p" not in str(caught.value)
    await database.close()


async def test_wrong_settings_are_named(tmp_path: Path):
    for settings, text in (
        (PostgresSettings(), "postgres.dsn or postgres.dsn_file is required"),
        (PostgresSettings(dsn_file=tmp_path / "absent"), "postgres.dsn_file cannot be read"),
    ):
        with pytest.raises(SettingsError, match=text):
            await Database(settings).open()


async def test_a_database_that_does_not_exist(postgres_settings):
    absent = dsn_of(postgres_settings).rsplit("/", 1)[0] + "/no_such_database"
    with pytest.raises(TargetUnavailable, match="does not exist"):
        await Database(PostgresSettings(dsn=absent)).open()


async def test_a_failed_transaction_leaves_nothing_and_the_connection_usable(postgres_settings):
    database = Database(postgres_settings.model_copy(update={"pool_max": 1}))

    async def fail() -> None:
        async with database.transaction() as connection:
            await connection.execute("CREATE TABLE gone (id INT)")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    async with database.transaction() as connection:
        assert await connection.fetchval("SELECT to_regclass('gone')") is None
    async with database.transaction() as connection:
        assert await connection.fetchval("SHOW transaction_isolation") == "read committed"
    await database.close()


async def test_an_open_transaction_is_ended_when_the_connection_goes_back(postgres_settings):
    database = Database(postgres_settings.model_copy(update={"pool_max": 1}))
    async with database.acquire() as connection:
        await connection.execute("BEGIN")
        await connection.execute("CREATE TABLE gone (id INT)")
    async with database.acquire() as connection:
        assert await connection.fetchval("SELECT to_regclass('gone')") is None
    await database.close()


async def test_transactions_are_read_committed_whatever_the_server_prefers(postgres_settings, database):
    async with database.acquire() as connection:
        name = await connection.fetchval("SELECT current_database()")
        await connection.execute(f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = 'serializable'")
    other = Database(postgres_settings)
    async with other.transaction() as connection:
        assert await connection.fetchval("SHOW transaction_isolation") == "read committed"
    await other.close()


async def test_a_full_pool_is_waited_for_and_then_reported(postgres_settings):
    database = Database(postgres_settings.model_copy(update={"pool_max": 1, "connect_timeout": 0.3}))
    async with database.acquire():
        with pytest.raises(TargetUnavailable):
            async with database.acquire():
                pass
    async with asyncio.timeout(5), database.acquire() as connection:
        assert await connection.fetchval("SELECT 1") == 1
    await database.close()
    await database.close()
