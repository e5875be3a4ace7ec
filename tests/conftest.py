"""Fixtures that every test may ask for. A test that asks for none of them needs no server.

`postgres_settings` gives each test a database of its own, made from a template that was migrated once, so tests run in
any order and beside each other. Milvus and Neo4j are shared: what a test makes there carries its database's backend id.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar
from uuid import UUID, uuid4

import asyncmy
import asyncpg
import pytest

import memplane.schema
from memplane.plugins.mysql.settings import MysqlSettings, parse_dsn
from memplane.schema.database import Database
from memplane.settings import MilvusSettings, Neo4jSettings, PostgresSettings
from tests import stack as test_stack
from tests.stack import Stack
from tests.stack.mysql import running as running_mysql

T = TypeVar("T")
MIGRATIONS = Path(memplane.schema.__file__).parent / "migrations"


def _run(work: Coroutine[object, object, T]) -> T:
    """Run a coroutine from a synchronous fixture without touching the test's own event loop."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """PostgreSQL, Milvus and Neo4j, started when nobody has done so yet."""
    running, using = test_stack.join()
    try:
        yield running
    finally:
        test_stack.leave(using)


async def _execute(dsn: str, *statements: str) -> None:
    connection = await asyncpg.connect(dsn, timeout=30)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


async def _make_template(stack: Stack, name: str) -> None:
    """Create the migrated template unless it exists; the advisory lock admits one maker."""
    connection = await asyncpg.connect(stack.dsn(), timeout=30)
    try:
        await connection.execute("SELECT pg_advisory_lock(hashtext('memplane test template'))")
        if await connection.fetchval("SELECT true FROM pg_database WHERE datname = $1", name):
            return
        partial = f"{name}_{uuid4().hex[:8]}"
        await connection.execute(f'CREATE DATABASE "{partial}"')
        await _migrate(stack.postgres_settings(partial))
        await connection.execute(f'ALTER DATABASE "{partial}" RENAME TO "{name}"')
    finally:
        await connection.close()


async def _migrate(settings: PostgresSettings) -> None:
    from memplane.schema.migrate import migrate

    database = Database(settings, application_name="memplane-tests")
    try:
        await migrate(database)
        # A copy of a database that has an identity is a clone and refuses to work: each copy gets its own.
        async with database.acquire() as connection:
            await connection.execute(database.sql("DELETE FROM {schema}.backend_identity"))
    finally:
        await database.close()


@pytest.fixture(scope="session")
def postgres_template(stack: Stack) -> str:
    """Name of a migrated database without identity; one per content of the migrations and of what applies them."""
    digest = hashlib.sha256()
    for path in sorted([*MIGRATIONS.glob("*.sql"), *MIGRATIONS.parent.glob("*.py")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    name = f"memplane_template_{digest.hexdigest()[:16]}"
    _run(_make_template(stack, name))
    return name


@pytest.fixture
def empty_postgres_settings(stack: Stack) -> Iterator[PostgresSettings]:
    """A database of this test without any table, dropped afterwards."""
    yield from _fresh(stack, "template1", identity=False)


@pytest.fixture
def postgres_settings(stack: Stack, postgres_template: str) -> Iterator[PostgresSettings]:
    """A migrated database of this test, with an identity of its own, dropped afterwards."""
    yield from _fresh(stack, postgres_template, identity=True)


@pytest.fixture(scope="module")
def module_postgres_settings(stack: Stack, postgres_template: str) -> Iterator[PostgresSettings]:
    """One migrated database for all tests of a module, for tests that each work in a scope of their own."""
    yield from _fresh(stack, postgres_template, identity=True)


def _fresh(stack: Stack, template: str, *, identity: bool) -> Iterator[PostgresSettings]:
    name = f"memplane_test_{uuid4().hex[:16]}"
    _run(_execute(stack.dsn(), f'CREATE DATABASE "{name}" TEMPLATE "{template}"'))
    try:
        settings = stack.postgres_settings(name)
        if identity:
            _run(_identify(settings))
        yield settings
    finally:
        _run(_execute(stack.dsn(), f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'))


async def _identify(settings: PostgresSettings) -> UUID:
    from memplane.schema.identity import ensure_identity

    database = Database(settings, application_name="memplane-tests")
    try:
        return await ensure_identity(database)
    finally:
        await database.close()


@pytest.fixture
async def database(postgres_settings: PostgresSettings) -> AsyncIterator[Database]:
    """An open pool on this test's database."""
    pool = Database(postgres_settings, application_name="memplane-tests")
    await pool.open()
    yield pool
    await pool.close()


@pytest.fixture
def backend_id(postgres_settings: PostgresSettings) -> UUID:
    """The identity of this test's database; carried by everything the test makes in Milvus and Neo4j."""
    return _run(_identify(postgres_settings))


@pytest.fixture(scope="session")
def milvus_settings(stack: Stack) -> MilvusSettings:
    return stack.milvus_settings()


@pytest.fixture(scope="session")
def neo4j_settings(stack: Stack) -> Neo4jSettings:
    return stack.neo4j_settings()


@pytest.fixture(scope="session")
def mysql_server() -> Iterator[str]:
    """The DSN, without a database name, of a MariaDB of this run; started by the first test that asks.

    `MEMPLANE_TEST_MYSQL_DSN` names one of your own instead, MySQL for instance; its account must make databases.
    """
    own = os.environ.get("MEMPLANE_TEST_MYSQL_DSN")
    if own:
        yield own.rstrip("/") + "/"
        return
    with running_mysql(test_stack.FOLDER) as server:
        yield f"mysql://{server.user}:{server.password}@{server.host}:{server.port}/"


@pytest.fixture
def mysql_dsn(mysql_server: str) -> Iterator[str]:
    """The DSN of an empty database of this test, dropped afterwards."""
    yield from _fresh_mysql(mysql_server)


@pytest.fixture(scope="module")
def module_mysql_dsn(mysql_server: str) -> Iterator[str]:
    """One empty database for all tests of a module, for tests that each work in a scope of their own."""
    yield from _fresh_mysql(mysql_server)


@pytest.fixture
def mysql_settings(mysql_dsn: str) -> MysqlSettings:
    return MysqlSettings.model_validate({"dsn": mysql_dsn})


def _fresh_mysql(server: str) -> Iterator[str]:
    name = f"memplane_test_{uuid4().hex[:16]}"
    _run(_execute_mysql(server, f"CREATE DATABASE {name}"))
    try:
        yield server + name
    finally:
        _run(_execute_mysql(server, f"DROP DATABASE {name}"))


async def _execute_mysql(server: str, statement: str) -> None:
    address = parse_dsn(f"{server}mysql")
    connection = asyncmy.Connection(host=address.host, port=address.port, user=address.user, password=address.password)
    await connection.connect()
    try:
        async with connection.cursor() as cursor:
            await cursor.execute(statement)
    finally:
        await connection.ensure_closed()
