"""A whole service on the real stores, with API keys of every kind; fixtures that tests of the CLI use, too."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from memplane.api.auth.identity import Role
from memplane.api.auth.key_file import KeyFile, new_key, render_key_file
from memplane.api.compose import ServiceProcess
from memplane.api.logs import set_up_logs
from memplane.errors import MemplaneError
from memplane.outbox.events import Target
from memplane.projections.generation import read_generation
from memplane.projections.milvus_client import MilvusConnection
from memplane.projections.milvus_collection import drop_collection
from memplane.projections.neo4j_client import Neo4jConnection
from memplane.schema.database import Database
from memplane.settings import (
    AuthSettings,
    LogSettings,
    MilvusSettings,
    Neo4jSettings,
    OutboxSettings,
    PostgresSettings,
    ServiceSettings,
    Settings,
    UpkeepSettings,
    WorkerSettings,
)
from tests.http.serving import client, serving

BOTH = (Target.MILVUS, Target.NEO4J)
QUICK = OutboxSettings(poll_seconds=0.1, lease_seconds=4, renew_seconds=1, call_timeout=3, breaker_seconds=0.3)
STATUS_KEY = "status-key-of-at-least-twenty-characters"


@dataclass
class Keys:
    """API keys by what they may do; `file` is what the service reads."""

    file: Path
    status_file: Path
    by_name: dict[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> str:
        return self.by_name[name]


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    made = {
        "ann": new_key(tenant="acme", users=["ann"], roles=[Role.READER, Role.WRITER]),
        "any": new_key(tenant="acme", users="*", roles=[Role.READER, Role.WRITER]),
        "reader": new_key(tenant="acme", users=["ann"], roles=[Role.READER]),
        "admin": new_key(tenant="acme", users="*", roles=[Role.ADMIN]),
        "other": new_key(tenant="other", users="*", roles=[Role.READER, Role.WRITER, Role.ADMIN]),
        "platform": new_key(tenant="ops", users="*", roles=[Role.PLATFORM]),
    }
    file, status = tmp_path / "keys.yaml", tmp_path / "status-key"
    file.write_text(render_key_file(KeyFile(keys=[entry for _, entry in made.values()])))
    status.write_text(STATUS_KEY)
    return Keys(file, status, {name: key for name, (key, _) in made.items()})


@pytest.fixture
def log_stream() -> Iterator[io.StringIO]:
    """Everything that the process logs, as the service would write it."""
    import logging

    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    set_up_logs(LogSettings(level="DEBUG"), stream)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def settings(
    postgres_settings: PostgresSettings, milvus_settings: MilvusSettings, neo4j_settings: Neo4jSettings, keys: Keys
) -> Settings:
    return Settings(
        postgres=postgres_settings,
        milvus=milvus_settings,
        neo4j=neo4j_settings,
        outbox=QUICK,
        auth=AuthSettings(api_keys_file=keys.file, status_key_file=keys.status_file),
        service=ServiceSettings(port=0),
        worker=WorkerSettings(port=0),
        upkeep=UpkeepSettings(expiry_seconds=0.2, prune_seconds=0.5),
    )


@asynccontextmanager
async def service(
    settings: Settings, *, workers: tuple[Target, ...] = (), wait: bool = True, sweep: Settings | None = None
) -> AsyncIterator[tuple[str, ServiceProcess]]:
    """The URL of a running service and its process; what it projected is dropped afterwards.

    `sweep` are the settings to drop with, when the service's own are wrong on purpose.
    """
    process = ServiceProcess(settings, worker_targets=workers)
    try:
        async with serving(process.app) as (url, _):
            await process.start()
            if wait:
                await asyncio.wait_for(process.ready(), 30)
            yield url, process
    finally:
        await process.close()
        await drop(sweep or settings)


async def drop(settings: Settings) -> None:
    database = Database(settings.postgres)
    try:
        milvus = await read_generation(database, Target.MILVUS)
        neo4j = await read_generation(database, Target.NEO4J)
    except MemplaneError:
        return  # the test took the database away or never migrated it: nothing was projected
    finally:
        await database.close()
    if milvus is not None:
        connection = MilvusConnection(settings.milvus)
        await drop_collection(connection, milvus)
        await connection.close()
    if neo4j is not None:
        graph = Neo4jConnection(settings.neo4j)
        await graph.run("MATCH (m:Memory {backend: $backend}) DETACH DELETE m", {"backend": neo4j.backend})
        await graph.close()


async def node(http: httpx.AsyncClient, name: str, document: Any) -> Any:
    """The output of a node call that must succeed."""
    response = await http.post(f"/v1/nodes/MEMORY.{name}", json=document)
    assert response.status_code == 200, response.text
    result = response.json()
    assert result["status"] == "success", result
    return result["output"]


async def eventually(check: Callable[[], Awaitable[bool]], seconds: float = 20) -> None:
    """Wait until `check` holds. The state is another process's or server's, so it can only be asked again."""
    end = time.monotonic() + seconds
    while not await check():
        assert time.monotonic() < end, f"it did not happen within {seconds} s"
        await asyncio.sleep(0.05)


async def settled(url: str) -> None:
    """Wait until no event is unfinished."""
    async with client(url, STATUS_KEY) as http:

        async def done() -> bool:
            status = (await http.get("/v1/admin/status")).json()
            return all(target["backlog"] == 0 for target in status["targets"].values())

        await eventually(done)
