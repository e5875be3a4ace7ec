"""Servers that are away at the start or in the middle, refuse or were changed: reasons are told, nothing is lost,
nothing needs a restart, and no secret shows up anywhere."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx
import pytest
from pydantic import SecretStr

from memplane.api.compose import ServiceProcess
from memplane.errors import IdentityError, SettingsError
from memplane.schema.database import Database
from memplane.schema.migrate import migrate
from memplane.settings import (
    AuthSettings,
    PostgresSettings,
    ServiceSettings,
    Settings,
)
from tests.http.relay import Relay
from tests.http.serving import client
from tests.http.world import BOTH, STATUS_KEY, Keys, eventually, node, service, settled

# Another user: Neo4j locks a user for seconds after wrong passwords, and the tests share theirs.
WRONG = {"user": "nobody", "password": SecretStr("wrong-secret-2"), "timeout": 2}


@asynccontextmanager
async def relayed(address: str) -> AsyncIterator[tuple[Relay, str]]:
    """A relay in front of the server of a URL, and the URL that goes through it."""
    parts = urlsplit(address)
    assert parts.hostname
    assert parts.port
    relay = Relay(parts.hostname, parts.port)
    await relay.up()
    credentials = parts.netloc.rpartition("@")[0]
    netloc = f"{credentials}@127.0.0.1:{relay.port}" if credentials else f"127.0.0.1:{relay.port}"
    try:
        yield relay, urlunsplit(parts._replace(netloc=netloc))
    finally:
        await relay.down()


def with_postgres(settings: Settings, dsn: str, **changes: Any) -> Settings:
    changed = settings.postgres.model_copy(update={"dsn": SecretStr(dsn), "connect_timeout": 2, **changes})
    return settings.model_copy(update={"postgres": changed})


def dsn_of(settings: Settings) -> str:
    assert settings.postgres.dsn is not None
    return settings.postgres.dsn.get_secret_value()


async def readiness(http: httpx.AsyncClient) -> tuple[int, dict[str, Any]]:
    response = await http.get("/readyz")
    return response.status_code, response.json()["checks"]


async def test_a_database_that_is_away_at_the_start_is_waited_for(settings: Settings, keys: Keys) -> None:
    async with relayed(dsn_of(settings)) as (relay, dsn):
        await relay.down()
        async with (
            service(with_postgres(settings, dsn), wait=False, sweep=settings) as (url, process),
            client(url, keys["ann"]) as http,
        ):
            status, checks = await readiness(http)
            assert status == 503
            assert not checks["postgresql"]["ok"]
            assert (await http.get("/livez")).status_code == 200
            call = await http.post("/v1/nodes/MEMORY.QUERY", json={})
            assert call.status_code == 503
            assert call.headers["retry-after"]
            async with client(url, STATUS_KEY) as operator:
                state = (await operator.get("/v1/admin/status")).json()
                assert state["ready"] is False
                assert state["schemaVersion"] is None
            assert (await http.get("/metrics")).status_code == 200
            await relay.up()
            await asyncio.wait_for(process.ready(), 20)
            assert await node(http, "QUERY", {}) == {"items": []}
            await eventually(lambda: _is_ready(http))


async def _is_ready(http: httpx.AsyncClient) -> bool:
    return (await readiness(http))[0] == 200


async def test_a_database_that_goes_away_in_the_middle_comes_back(settings: Settings, keys: Keys) -> None:
    async with relayed(dsn_of(settings)) as (relay, dsn):
        through = with_postgres(settings, dsn)
        async with service(through, workers=BOTH, sweep=settings) as (url, _), client(url, keys["ann"]) as http:
            first = await node(http, "WRITE", {"memories": [{"content": "before"}]})
            await relay.down()
            answer = (await http.post("/v1/nodes/MEMORY.GET", json={"ids": ["1"]})).json()
            assert answer["status"] == "failed"
            assert answer["error"]["code"] == "STORE_UNAVAILABLE"
            await eventually(lambda: _is_not_ready(http), 10)
            async with client(url, keys["admin"]) as admin:
                assert (await admin.get("/v1/admin/outbox")).status_code == 503
            await relay.up()
            await eventually(lambda: _is_ready(http))
            assert await node(http, "GET", {"ids": [first[0]["id"]]}) == first
            await node(http, "WRITE", {"memories": [{"content": "after"}]})
            await settled(url)


async def _is_not_ready(http: httpx.AsyncClient) -> bool:
    return (await readiness(http))[0] == 503


@pytest.mark.parametrize("change", ["password", "database", "user"])
async def test_a_wrong_dsn_is_told_without_the_dsn(
    settings: Settings, keys: Keys, log_stream: io.StringIO, change: str
) -> None:
    parts = urlsplit(dsn_of(settings))
    user, password, path = parts.username, "wrong-secret-1", parts.path
    if change == "database":
        password, path = str(parts.password), "/no_such_database"
    if change == "user":
        user = "nobody"
    dsn = urlunsplit(parts._replace(netloc=f"{user}:{password}@{parts.hostname}:{parts.port}", path=path))
    async with (
        service(with_postgres(settings, dsn), wait=False, sweep=settings) as (url, _),
        client(url, keys["ann"]) as http,
    ):
        await asyncio.sleep(0.5)
        status, checks = await readiness(http)
        answer = await http.post("/v1/nodes/MEMORY.QUERY", json={})
    assert status == 503
    detail = checks["postgresql"]["detail"]
    assert ("credentials" in detail) if change != "database" else ("does not exist" in detail)
    assert answer.status_code == 503
    for text in (answer.text, str(checks), log_stream.getvalue()):
        assert password not in text
        assert "postgresql://" not in text


async def test_a_database_without_schema_is_waited_for(
    settings: Settings, empty_postgres_settings: PostgresSettings, keys: Keys
) -> None:
    empty = settings.model_copy(update={"postgres": empty_postgres_settings})
    async with service(empty, wait=False) as (url, process), client(url, keys["ann"]) as http:
        status, checks = await readiness(http)
        assert status == 503
        assert checks["postgresql"]["ok"]
        assert "memplane migrate" in checks["schema"]["detail"]
        assert "memplane migrate" in (await http.post("/v1/nodes/MEMORY.GET", json={"ids": ["1"]})).text
        database = Database(empty_postgres_settings)
        await migrate(database)
        await database.close()
        await asyncio.wait_for(process.ready(), 20)
        assert await node(http, "QUERY", {}) == {"items": []}


async def test_a_cloned_database_is_refused(settings: Settings, database: Database) -> None:
    async with database.acquire() as connection:
        await connection.execute(database.sql("UPDATE {schema}.backend_identity SET database_oid = 1"))
    process = ServiceProcess(settings)
    await process.start()
    with pytest.raises(IdentityError):
        await asyncio.wait_for(process.ready(), 10)
    assert isinstance(process.refusal, IdentityError)
    await process.close()
    await process.close()


async def test_milvus_away_degrades_and_heals(settings: Settings, keys: Keys) -> None:
    assert settings.milvus.uri
    async with relayed(settings.milvus.uri) as (relay, uri):
        milvus = settings.milvus.model_copy(update={"uri": uri, "timeout": 2})
        through = settings.model_copy(update={"milvus": milvus})
        async with service(through, workers=BOTH, sweep=settings) as (url, _), client(url, keys["ann"]) as http:
            await node(http, "WRITE", {"memories": [{"content": "a red bicycle"}]})
            await settled(url)
            await relay.down()
            written = await node(http, "WRITE", {"memories": [{"content": "a blue bicycle"}]})
            default = await http.post("/v1/nodes/MEMORY.SEARCH", json={"query": "bicycle"})
            assert default.json()["status"] == "success"
            assert len(default.json()["output"]) == 2
            assert "milvus" in default.headers["x-memory-degraded"].split(",")
            named = await http.post("/v1/nodes/MEMORY.SEARCH", json={"query": "bicycle", "strategy": "vector"})
            assert named.json()["error"]["code"] == "SEARCH_UNAVAILABLE"
            await asyncio.sleep(1.1)
            status, checks = await readiness(http)
            assert status == 200
            assert not checks["milvus"]["ok"]
            assert checks["neo4j"]["ok"]
            degraded = (await http.get("/metrics")).text
            assert 'memory_search_degraded_total{target="milvus"}' in degraded
            await relay.up()
            await settled(url)

            async def found() -> bool:
                answer = await http.post("/v1/nodes/MEMORY.SEARCH", json={"query": "bicycle", "strategy": "vector"})
                hits = answer.json().get("output", [])
                return written[0]["id"] in [hit["memory"]["id"] for hit in hits]

            await eventually(found)


async def test_neo4j_away_holds_up_nobody_else(settings: Settings, keys: Keys) -> None:
    assert settings.neo4j.uri
    parts = urlsplit(settings.neo4j.uri)
    async with relayed(settings.neo4j.uri) as (relay, _):
        uri = f"bolt://127.0.0.1:{relay.port}" if parts.scheme.startswith("neo4j") else settings.neo4j.uri.replace(
            f":{parts.port}", f":{relay.port}"
        )  # fmt: skip
        neo4j = settings.neo4j.model_copy(update={"uri": uri, "timeout": 2})
        through = settings.model_copy(update={"neo4j": neo4j})
        async with service(through, workers=BOTH, sweep=settings) as (url, _), client(url, keys["ann"]) as http:
            await node(http, "WRITE", {"memories": [{"content": "one"}]})
            await settled(url)
            await relay.down()
            await node(http, "WRITE", {"memories": [{"content": "two"}]})
            async with client(url, STATUS_KEY) as operator:

                async def milvus_is_done() -> bool:
                    targets = (await operator.get("/v1/admin/status")).json()["targets"]
                    return bool(targets["milvus"]["backlog"] == 0 and targets["neo4j"]["backlog"] > 0)

                await eventually(milvus_is_done)
            await relay.up()
            await settled(url)


async def test_wrong_projection_credentials_show_no_secret(
    settings: Settings, keys: Keys, log_stream: io.StringIO
) -> None:
    wrong = settings.model_copy(update={"neo4j": settings.neo4j.model_copy(update=WRONG)})
    async with service(wrong, workers=BOTH, sweep=settings) as (url, _), client(url, keys["ann"]) as http:
        await node(http, "WRITE", {"memories": [{"content": "one"}]})
        await asyncio.sleep(1)
        status, checks = await readiness(http)
        graph = await http.post("/v1/nodes/MEMORY.SEARCH", json={"query": "one", "strategy": "graph"})
    assert status == 200
    assert not checks["neo4j"]["ok"]
    assert graph.json()["error"]["code"] == "SEARCH_UNAVAILABLE"
    for text in (str(checks), graph.text, log_stream.getvalue()):
        assert "wrong-secret-2" not in text


async def test_secrets_are_never_logged(settings: Settings, keys: Keys, log_stream: io.StringIO) -> None:
    logged = settings.model_copy(update={"service": settings.service.model_copy(update={"access_log": True})})
    secrets = [*keys.by_name.values(), STATUS_KEY, str(urlsplit(dsn_of(settings)).password)]
    assert settings.neo4j.password is not None
    secrets.append(settings.neo4j.password.get_secret_value())
    answers = []
    async with service(logged, workers=BOTH) as (url, process):
        for key in [*keys.by_name.values(), STATUS_KEY, "mp_guess_" + "x" * 40]:
            async with client(url, key, "ann") as http:
                for path in ("/v1/admin/status", "/v1/admin/outbox", "/metrics", "/readyz", "/nothing"):
                    answers.append((await http.get(path)).text)
                document = {"memories": [{"content": "the body of a memory"}]}
                answers.append((await http.post("/v1/nodes/MEMORY.WRITE", json=document)).text)
                answers.append((await http.post("/v1/nodes/MEMORY.WRITE", json={"bad": key})).text)
        await settled(url)
        assert repr(process.settings).count("**********") >= 2
    text = log_stream.getvalue()
    assert '"message": "request"' in text
    assert '"request_id"' in text
    for secret in [*secrets, "mp_guess_"]:
        assert secret not in text
        assert not any(secret in answer for answer in answers)
    assert "the body of a memory" not in text, "contents are nobody's to log"


async def test_process_settings_that_cannot_work_are_refused() -> None:
    dsn = PostgresSettings(dsn=SecretStr("postgresql://localhost/x"))
    cases = [
        (Settings(), r"postgres\.dsn or postgres\.dsn_file is required"),
        (Settings(postgres=dsn), r"auth\.api_keys_file"),
        (
            Settings(postgres=dsn, auth=AuthSettings(mode="none"), service=ServiceSettings(host="0.0.0.0")),
            "loopback",
        ),
        (Settings(postgres=dsn, auth=AuthSettings(mode="jwt")), r"auth\.jwt\.issuer"),
        (
            Settings.model_validate(
                {"postgres": dsn, "auth": {"mode": "none"}, "embedding": {"plugin": "no-such-plugin"}}
            ),
            "no-such-plugin",
        ),
        (
            Settings.model_validate({"postgres": dsn, "auth": {"mode": "none"}, "search": {"plugin": "nope"}}),
            "nope",
        ),
        (
            Settings.model_validate(
                {"postgres": dsn, "auth": {"mode": "none"}, "search": {"options": {"no_such_option": 1}}}
            ),
            "no_such_option",
        ),
    ]
    for settings, message in cases:
        with pytest.raises(SettingsError, match=message):
            ServiceProcess(settings)
