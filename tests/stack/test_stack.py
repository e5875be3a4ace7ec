"""The shared servers and the fixtures that hand them out."""

from __future__ import annotations

import sys
from pathlib import Path
from uuid import UUID

import asyncpg
import pytest
from neo4j import AsyncGraphDatabase
from pymilvus import MilvusClient, MilvusException

from memplane.schema.database import Database
from memplane.settings import MilvusSettings, Neo4jSettings, PostgresSettings
from tests.stack import Stack
from tests.stack.process import end_group, group_alive, spawn


async def test_each_test_gets_a_migrated_database_with_an_identity_of_its_own(
    database: Database, backend_id: UUID, empty_postgres_settings: PostgresSettings
) -> None:
    async with database.acquire() as connection:
        stored = await connection.fetchval(database.sql("SELECT backend_id FROM {schema}.backend_identity"))
        assert stored == backend_id
        assert await connection.fetchval(database.sql("SELECT count(*) FROM {schema}.long_term_memory")) == 0
    empty = Database(empty_postgres_settings)
    async with empty.acquire() as connection:
        assert await connection.fetchval("SELECT to_regnamespace('memplane')") is None
    await empty.close()


async def test_durability_of_the_test_server_is_that_of_production(database: Database) -> None:
    async with database.acquire() as connection:
        assert await connection.fetchval("SHOW fsync") == "on"
        assert await connection.fetchval("SHOW synchronous_commit") == "on"
        assert int(await connection.fetchval("SHOW max_connections")) >= 300


def test_milvus_answers_and_refuses_a_wrong_password(milvus_settings: MilvusSettings) -> None:
    assert milvus_settings.uri is not None
    assert milvus_settings.token is not None
    client = MilvusClient(uri=milvus_settings.uri, token=milvus_settings.token.get_secret_value())
    assert client.get_server_version().startswith("v2.3.5")
    client.close()
    with pytest.raises(MilvusException):
        MilvusClient(uri=milvus_settings.uri, token="root:wrong-password", timeout=5).list_collections()


async def test_neo4j_answers(neo4j_settings: Neo4jSettings) -> None:
    assert neo4j_settings.uri is not None
    assert neo4j_settings.password is not None
    auth = (neo4j_settings.user, neo4j_settings.password.get_secret_value())
    async with AsyncGraphDatabase.driver(neo4j_settings.uri, auth=auth) as driver:
        records, _, _ = await driver.execute_query("CALL dbms.components() YIELD versions RETURN versions[0] AS v")
        assert records[0]["v"].startswith("5.26")


def test_a_wrong_password_is_refused_by_postgresql(stack: Stack) -> None:
    import asyncio

    async def connect() -> None:
        await asyncpg.connect(host="127.0.0.1", port=stack.postgres.port, user="memplane", password="wrong")

    with pytest.raises(asyncpg.InvalidPasswordError):
        asyncio.run(connect())


def test_ending_a_group_ends_the_children_too(tmp_path: Path) -> None:
    child = [sys.executable, "-c", "import time; time.sleep(60)"]
    command = f"import subprocess, time; subprocess.Popen({child!r}); time.sleep(60)"
    process = spawn([sys.executable, "-c", command], log=tmp_path / "log")
    assert group_alive(process.pid)
    end_group(process.pid, seconds=5)
    process.wait(timeout=5)
    assert not group_alive(process.pid)
