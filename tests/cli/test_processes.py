"""`serve`, `worker` and `reconcile` as processes: they start, they work, they end in good order on SIGTERM."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from memplane.outbox.events import Target
from memplane.projections.generation import read_generation
from memplane.schema.database import Database
from memplane.settings import Settings
from tests.cli.conftest import Command
from tests.http.processes import child, wait_ready, write_settings
from tests.http.world import Keys, drop


@pytest.fixture
def config(settings: Settings, tmp_path: Path) -> Iterator[Path]:
    """A settings file on the real stores; what was projected is dropped afterwards."""
    yield write_settings(settings, tmp_path / "settings.yaml")
    asyncio.run(drop(settings))


def call(url: str, key: str, name: str, document: object) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.post(f"{url}/v1/nodes/MEMORY.{name}", json=document, headers=headers, timeout=20)


def backlog(settings: Settings) -> int:
    async def count() -> int:
        database = Database(settings.postgres)
        try:
            async with database.acquire() as connection:
                statement = "SELECT count(*) FROM {schema}.memory_outbox WHERE status IN ('pending', 'processing')"
                return int(await connection.fetchval(database.sql(statement)))
        finally:
            await database.close()

    return asyncio.run(count())


def wait_settled(settings: Settings, seconds: float = 40) -> None:
    end = time.monotonic() + seconds
    while backlog(settings):
        assert time.monotonic() < end
        time.sleep(0.1)


def test_service_and_workers(config: Path, settings: Settings, keys: Keys, tmp_path: Path) -> None:
    with (
        child(config, tmp_path / "serve.log", "serve") as service,
        child(config, tmp_path / "milvus.log", "worker", "milvus") as milvus,
        child(config, tmp_path / "neo4j.log", "worker", "neo4j") as neo4j,
    ):
        wait_ready(service.url)
        written = call(service.url, keys["ann"], "WRITE", {"memories": [{"content": "a green parrot"}]})
        assert written.json()["status"] == "success"
        wait_settled(settings)
        hits = call(service.url, keys["ann"], "SEARCH", {"query": "parrot", "strategy": "vector"}).json()["output"]
        assert hits[0]["memory"]["content"] == "a green parrot"
        assert httpx.get(f"{milvus.url}/livez").json() == {"live": True}
        wait_ready(milvus.url)
        metrics = httpx.get(f"{milvus.url}/metrics").text
        assert 'memory_projection_latency_seconds_count{target="milvus"} 1.0' in metrics

        command = Command(config)
        assert command.json("reconcile", "milvus", "--full", "--audit")["state"] == "completed"
        assert command("reconcile", "neo4j").exit_code == 0
        _delete_vectors(settings)
        found = command.json("reconcile", "milvus", "--audit", code=6)
        assert found["mismatches"] == {"missing": 1}
        repaired = command("reconcile", "milvus", "--repair")
        assert repaired.exit_code == 0
        assert "missing" in repaired.stdout
        wait_settled(settings)
        assert command("reconcile", "milvus").exit_code == 0
        assert command("reconcile", "milvus", "--audit", "--repair").exit_code == 3
        assert command("reconcile", "milvus", "--full", "--incremental").exit_code == 3
        changed = command.json("reconcile", "milvus", "--incremental")
        assert (changed["kind"], changed["state"]) == ("incremental", "completed")
        runs = command.json("reconcile", "--runs")
        assert [run["target"] for run in runs] == ["milvus"] * 4 + ["neo4j", "milvus"]
        assert runs[2]["repaired"] == {"missing": 1}
        assert "missing 1" in command("reconcile", "milvus", "--runs", "--limit", "4").stdout

        for process in (milvus, neo4j, service):
            assert process.end() == 0
            assert all(line["level"] in ("INFO", "WARNING") for line in process.lines()), process.log.read_text()


def _delete_vectors(settings: Settings) -> None:
    from memplane.projections.milvus_client import MilvusConnection

    async def delete() -> None:
        database = Database(settings.postgres)
        generation = await read_generation(database, Target.MILVUS)
        await database.close()
        assert generation is not None
        connection = MilvusConnection(settings.milvus)
        await connection.call("delete", generation.collection, filter="memory_id > 0")
        await connection.close()

    asyncio.run(delete())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_answers_what_was_begun(config: Path, keys: Keys, tmp_path: Path, number: int) -> None:
    with child(config, tmp_path / "serve.log", "serve") as service:
        wait_ready(service.url)
        parts = urlsplit(service.url)
        assert parts.hostname
        assert parts.port
        body = json.dumps({"memories": [{"content": "begun before the stop"}]}).encode()
        with socket.create_connection((parts.hostname, parts.port), timeout=20) as connection:
            head = (
                f"POST /v1/nodes/MEMORY.WRITE HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {keys['ann']}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            connection.sendall(head.encode() + body[:10])
            time.sleep(0.5)
            ended: list[int] = []
            stopping = threading.Thread(target=lambda: ended.append(service.end(number)))
            stopping.start()
            time.sleep(0.5)
            with pytest.raises(httpx.TransportError):
                httpx.get(f"{service.url}/livez", timeout=2)
            connection.sendall(body[10:])
            answer = b""
            while data := connection.recv(65536):
                answer += data
            stopping.join(30)
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b'"status":"success"' in answer
        assert ended == [0]


def test_a_database_of_another_backend_ends_the_service(config: Path, settings: Settings, tmp_path: Path) -> None:
    async def clone() -> None:
        database = Database(settings.postgres)
        async with database.acquire() as connection:
            await connection.execute(database.sql("UPDATE {schema}.backend_identity SET database_oid = 1"))
        await database.close()

    asyncio.run(clone())
    for command in (["serve"], ["worker", "milvus"]):
        ended = subprocess.run(
            [sys.executable, "-m", "memplane", "--config", str(config), *command],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ended.returncode == 4, ended.stderr
        assert "doctor --new-identity" in ended.stderr


def test_a_collection_of_another_dimension_ends_the_worker(config: Path, settings: Settings, tmp_path: Path) -> None:
    with child(config, tmp_path / "first.log", "worker", "milvus") as worker:
        wait_ready(worker.url)
        end = time.monotonic() + 30
        while not any("outbox worker started" in line["message"] for line in worker.lines()):
            assert time.monotonic() < end, worker.log.read_text()
            time.sleep(0.1)
        assert worker.end() == 0
    other = Settings.model_validate(
        {**dict(settings), "embedding": {"plugin": "hashing", "options": {"dimensions": 64}}}
    )
    path = write_settings(other, tmp_path / "other.yaml")
    ended = subprocess.run(
        [sys.executable, "-m", "memplane", "--config", str(path), "worker", "milvus"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 4, ended.stderr
    assert "384" in ended.stderr
    assert "64" in ended.stderr
    doctor = Command(path).json("doctor", code=6)
    assert not {one["check"]: one for one in doctor}["milvus projection"]["ok"]
