"""The service with another store and no PostgreSQL at all: what it serves, shows, counts and refuses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from memplane.api.compose import ServiceProcess
from memplane.api.connections import connect, enabled_targets
from memplane.api.health import PluginTruth
from memplane.api.retrieval_process import RetrievalProcess
from memplane.api.worker_process import WorkerProcess
from memplane.errors import SettingsError
from memplane.outbox.events import Target
from memplane.projections.milvus_client import MilvusConnection
from memplane.settings import (
    AuthSettings,
    CacheSettings,
    MilvusSettings,
    PostgresSettings,
    RetrievalSettings,
    SearchSettings,
    ServiceSettings,
    Settings,
    StoreSettings,
)
from tests.cli.conftest import Command
from tests.http.processes import child, wait_ready, write_settings
from tests.http.serving import client
from tests.http.world import STATUS_KEY, Keys, eventually, node, service

FOREIGN = ("inmemory", "mysql", "milvus")


def settings_of(keys: Keys, plugin: str, options: dict[str, Any], **more: Any) -> Settings:
    return Settings(
        store=StoreSettings(plugin=plugin, options=options),
        search=SearchSettings(plugin="native"),
        auth=AuthSettings(api_keys_file=keys.file, status_key_file=keys.status_file),
        service=ServiceSettings(port=0),
        **more,
    )


@pytest.fixture(params=FOREIGN)
async def foreign(request: pytest.FixtureRequest, keys: Keys) -> AsyncIterator[Settings]:
    """Settings with a store that needs no PostgreSQL, and no section for it."""
    if request.param == "mysql":
        yield settings_of(keys, "mysql", {"dsn": request.getfixturevalue("mysql_dsn")})
    elif request.param == "milvus":
        milvus: MilvusSettings = request.getfixturevalue("milvus_settings")
        name = f"memplane_test_{uuid4().hex[:16]}"
        yield settings_of(keys, "milvus", {"collection": name}, milvus=milvus)
        connection = MilvusConnection(milvus)
        for collection in (name, f"{name}_ids"):
            await connection.call("drop_collection", collection)
        await connection.close()
    else:
        yield settings_of(keys, "inmemory", {})


async def test_the_six_nodes_are_served_without_postgresql(foreign: Settings, keys: Keys) -> None:
    async with service(foreign) as (url, _), client(url, keys["ann"]) as http:
        [written] = await node(http, "WRITE", {"memories": [{"key": "a", "content": "an otter called Vermilion"}]})
        assert await node(http, "GET", {"keys": ["a"]}) == [written]
        assert (await node(http, "QUERY", {}))["items"] == [written]
        [hit] = await node(http, "SEARCH", {"query": "otter Vermilion"})
        assert hit["memory"]["id"] == written["id"]
        [changed] = await node(http, "UPDATE", {"memories": [{"id": written["id"], "content": "another"}]})
        assert changed["version"] == 2
        assert await node(http, "DELETE", {"ids": [written["id"]]}) == {"deleted": [written["id"]]}


async def test_readiness_metrics_and_status_speak_of_what_is_there(foreign: Settings, keys: Keys) -> None:
    async with service(foreign) as (url, _):
        async with client(url) as http:

            async def ready() -> bool:
                answer = await http.get("/readyz")
                assert "postgresql" not in answer.json()["checks"]
                return (answer.status_code, answer.json()["checks"]["store"]["ok"]) == (200, True)

            await eventually(ready)  # a store may need longer than a probe waits, on a busy machine
            metrics = (await http.get("/metrics")).text
            assert "memplane_http_requests" in metrics
            assert "memory_projection_pending{" not in metrics
            assert "memplane_recovery_jobs" not in metrics
            paths = (await http.get("/openapi.json")).json()["paths"]
            assert "/v1/capabilities" in paths
            assert not [path for path in paths if "outbox" in path or "recovery" in path or "drift" in path]
        async with client(url, STATUS_KEY) as http:

            async def well() -> bool:
                status = (await http.get("/v1/admin/status")).json()
                assert status["schemaVersion"] is None
                return bool(status["ready"] and status["store"]["ok"])

            await eventually(well)
            status = (await http.get("/v1/admin/status")).json()
            assert not any(target["enabled"] for target in status["targets"].values())
        async with client(url, keys["platform"]) as http:
            for path in ("/v1/admin/outbox", "/v1/admin/drift", "/v1/recovery/jobs"):
                assert (await http.get(path)).status_code == 404


async def test_the_service_shows_what_its_store_promises(foreign: Settings, keys: Keys) -> None:
    async with service(foreign) as (url, process):
        async with client(url) as http:
            assert (await http.get("/v1/capabilities")).status_code == 401
        async with client(url, keys["reader"]) as http:
            shown = (await http.get("/v1/capabilities")).json()
        plugin, declared = foreign.store.plugin, process._store.capabilities
        assert shown["store"]["plugin"] == plugin
        assert shown["store"]["atomicBatches"] == (plugin != "milvus") == declared["atomicBatches"]
        assert shown["store"]["writers"] == ("one" if plugin == "milvus" else "many")
        assert shown["store"]["filters"] == list(declared["filters"])
        assert shown["store"]["orderFields"] == list(declared["orderFields"])
        assert shown["search"] == {"plugin": "native", "strategies": list(declared["strategies"])}


async def test_postgresql_shows_what_it_and_its_searches_promise(
    postgres_settings: PostgresSettings, keys: Keys
) -> None:
    settings = Settings(postgres=postgres_settings, auth=AuthSettings(api_keys_file=keys.file))
    async with service(settings) as (url, _), client(url, keys["reader"]) as http:
        shown = (await http.get("/v1/capabilities")).json()
    assert (shown["store"]["plugin"], shown["store"]["atomicBatches"]) == ("postgres", True)
    assert "$contains" in shown["store"]["filters"]
    assert shown["search"] == {"plugin": "hybrid", "strategies": ["keyword", "hybrid"]}


async def test_postgresql_beside_another_store_holds_recovery_tasks_and_decides_nothing(
    keys: Keys, postgres_settings: PostgresSettings
) -> None:
    settings = settings_of(keys, "inmemory", {}, postgres=postgres_settings)
    async with service(settings) as (url, _), client(url, keys["admin"]) as http:
        assert (await http.get("/v1/recovery/jobs")).json()["jobs"] == []
        assert (await http.get("/readyz")).json()["checks"]["postgresql"]["ok"] is True
        assert "memplane_recovery_jobs" in (await http.get("/metrics")).text
    away = settings_of(keys, "inmemory", {}, postgres=PostgresSettings(dsn="postgresql://u:p@127.0.0.1:1/d"))
    async with service(away) as (url, _), client(url, keys["any"], "ann") as http:
        ready = await http.get("/readyz")
        assert (ready.status_code, ready.json()["checks"]["postgresql"]["ok"]) == (200, False)
        await node(http, "WRITE", {"memories": [{"content": "x"}]})


@pytest.mark.parametrize("target", [Target.MILVUS, Target.NEO4J])
def test_outbox_workers_beside_another_store_are_refused(keys: Keys, target: Target) -> None:
    settings = settings_of(keys, "mysql", {"dsn": "mysql://u:p@127.0.0.1:1/d"})
    with pytest.raises(SettingsError, match=r"store\.plugin is mysql: only the store postgres has projections"):
        WorkerProcess(settings, target)
    assert enabled_targets(settings) == frozenset()


def test_commands_on_postgresql_say_what_is_missing(keys: Keys, tmp_path: Path) -> None:
    settings = settings_of(keys, "inmemory", {})
    command = Command(write_settings(settings, tmp_path / "settings.yaml"))
    for arguments, told in (
        (["worker", "milvus"], "only the store postgres has projections and outbox workers"),
        (["reconcile", "milvus"], "only the store postgres has projections and outbox workers"),
        (["migrate"], "postgres.dsn or postgres.dsn_file is required"),
        (["outbox", "list"], "postgres.dsn or postgres.dsn_file is required"),
    ):
        result = command(*arguments)
        assert (result.exit_code, told in result.stderr) == (3, True), (arguments, result.stderr)


def test_the_store_postgres_still_needs_postgresql(keys: Keys) -> None:
    with pytest.raises(SettingsError, match=r"postgres\.dsn or postgres\.dsn_file is required"):
        connect(Settings(), application_name="test")


@pytest.mark.parametrize(
    ("plugin", "max_bytes"), [("inmemory", 1024), ("postgres", 0)], ids=["another store", "no cache"]
)
def test_cached_reads_are_refused_where_nothing_would_invalidate_them(keys: Keys, plugin: str, max_bytes: int) -> None:
    settings = settings_of(
        keys,
        plugin,
        {},
        postgres=PostgresSettings(dsn="postgresql://u:p@127.0.0.1:1/d"),
        cache=CacheSettings(consistency="cached", max_bytes=max_bytes),
    )
    with pytest.raises(SettingsError, match=r"cache\.consistency cached needs store\.plugin postgres"):
        ServiceProcess(settings)


async def test_a_retrieval_process_needs_no_postgresql_either(keys: Keys) -> None:
    settings = settings_of(
        keys, "inmemory", {}, retrieval=RetrievalSettings(token="t" * 20, search=SearchSettings(plugin="native"))
    )
    process = RetrievalProcess(settings)
    await process.start()
    part = process.supervisor.parts["startup"]
    await part.finished.wait()
    assert part.check.ok
    await process.close()


async def test_a_store_that_does_not_answer_is_not_ready() -> None:
    class Away:
        async def healthy(self) -> bool:
            return False

    assert not (await PluginTruth(Away(), lambda: None).ask())["store"].ok
    assert (await PluginTruth(object(), lambda: None).ask())["store"].ok
    starting = (await PluginTruth(object(), lambda: "The service is starting").ask())["store"]
    assert (starting.ok, starting.detail) == (False, "The service is starting")


def test_memplane_serve_runs_on_mysql_alone(keys: Keys, mysql_dsn: str, tmp_path: Path) -> None:
    config = write_settings(settings_of(keys, "mysql", {"dsn": mysql_dsn}), tmp_path / "settings.yaml")
    with child(config, tmp_path / "log", "serve") as running:
        wait_ready(running.url)
        headers = {"Authorization": f"Bearer {keys['ann']}"}
        body = {"memories": [{"content": "over HTTP"}]}
        answer = httpx.post(f"{running.url}/v1/nodes/MEMORY.WRITE", json=body, headers=headers).json()
        assert answer["status"] == "success", answer
        assert running.end() == 0
