"""Two processes share the PostgreSQL store: one is killed in the middle of a task, the other one finishes it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from experiments.model_server import ModelServer
from experiments.task_process import kill_myself

from memplane.errors import MemplaneError
from memplane.recovery import JobBusy, RecoveryStore, run_checkpoint, start_fulfillment_service
from memplane.recovery.leases import held
from memplane.recovery.postgres_jobs import PostgresJobs
from memplane.runtime import create_runtime
from memplane.schema.database import Database
from memplane.settings import PostgresSettings
from memplane.workers import OpenAIChatProvider, create_context_worker, create_infer_worker, create_interaction_worker
from tests.recovery.forked import context
from tests.recovery.world import ID, TEXT

SECONDS = 2.0


async def work(plan: dict[str, Any]) -> dict[str, Any]:
    """One worker: takes the lease and runs the task; killed at `kill`, stopped at `stop`, if there is one."""

    def probe(point: str) -> None:
        if point == plan["kill"]:
            kill_myself()
        if point == plan.get("stop"):
            Path(plan["directory"], "stopped").touch()
            os.kill(os.getpid(), signal.SIGSTOP)

    database = Database(PostgresSettings(dsn=plan["dsn"], schema_name=plan["schema"]))
    jobs = PostgresJobs(database)
    store = RecoveryStore(plan["directory"], plan["service"], jobs=jobs, probe=probe)
    provider = OpenAIChatProvider(base_url=plan["model"])
    runtime = create_runtime(
        sandbox={"tools": [tool.name for tool in store.tools], "network": [store.origin, provider.origin]},
        workers=[
            create_context_worker(),
            create_infer_worker(providers={"openai": provider}),
            create_interaction_worker(tools=list(store.tools)),
        ],
    )
    try:
        async with held(jobs, ID, f"worker-{os.getpid()}", SECONDS) as lost:
            given = {"id": ID, "model": {"provider": "openai", "model": "scripted"}}
            return await run_checkpoint(runtime, given, signal=lost)
    finally:
        await runtime.close()
        await provider.close()
        await store.close()
        await database.close()


def process(plan: dict[str, Any]) -> None:
    asyncio.run(work(plan))


def dsn(settings: PostgresSettings) -> str:
    assert settings.dsn is not None
    return settings.dsn.get_secret_value()


@pytest.mark.parametrize(
    "point", ["prepared:during", "recovery_operation.reserve.submit:after", "checkpoint-ship:during"]
)
async def test_another_process_finishes_what_a_killed_one_began(
    tmp_path: Path, postgres_settings: PostgresSettings, database: Database, point: str
) -> None:
    (tmp_path / f"{ID}.txt").write_text(TEXT, encoding="utf-8")
    model = ModelServer()
    service = await start_fulfillment_service(tmp_path / "service.sqlite", [{"sku": "SKU-731", "quantity": 20}])
    jobs = PostgresJobs(database)
    try:
        store = RecoveryStore(tmp_path, service.url, jobs=jobs)
        await store.create(ID)
        plan = {
            "dsn": dsn(postgres_settings),
            "schema": postgres_settings.schema_name,
            "directory": str(tmp_path),
            "service": service.url,
            "model": model.url,
            "kill": point,
        }
        first = context().Process(target=process, args=(plan,))
        first.start()
        await asyncio.to_thread(first.join, 60)
        assert first.exitcode == -signal.SIGKILL
        with pytest.raises(JobBusy):
            await work({**plan, "kill": None})
        async with asyncio.timeout(20):
            # The dead worker's lease ends on the server's clock.
            while not await jobs.acquire(ID, "watcher", 0.01):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await asyncio.sleep(0.05)
        job = await work({**plan, "kill": None})
        assert job["stage"] == "completed"
        assert (service.writes("/reserve"), service.writes("/ship")) == (1, 1)
        assert json.loads((tmp_path / "results" / f"{ID}.json").read_text()) == job == await store.job(ID)
        revisions = [event.data["revision"] for event in await store.events(ID) if "revision" in event.data]
        assert revisions == list(range(job["revision"] + 1))
        await store.close()
    finally:
        await service.close()
        model.close()
    connection = sqlite3.connect(tmp_path / "service.sqlite")
    assert connection.execute("SELECT quantity FROM inventory").fetchone() == (18,)
    connection.close()


@pytest.mark.parametrize(
    ("stop", "told"),
    [
        ("recovery_checkpoint.reserve:before", "The task's lease was lost"),
        # The server ends the transaction in which it was stopped, and with it its locks, after ten seconds.
        pytest.param("checkpoint-reserve:during", "postgresql is unavailable", marks=pytest.mark.full),
    ],
)
async def test_a_process_that_slept_through_its_lease_writes_nothing(
    tmp_path: Path, postgres_settings: PostgresSettings, database: Database, stop: str, told: str
) -> None:
    """Stopped while it holds the lease, continued when another process has finished the task."""
    (tmp_path / f"{ID}.txt").write_text(TEXT, encoding="utf-8")
    model = ModelServer()
    service = await start_fulfillment_service(tmp_path / "service.sqlite", [{"sku": "SKU-731", "quantity": 20}])
    jobs = PostgresJobs(database)
    try:
        store = RecoveryStore(tmp_path, service.url, jobs=jobs)
        await store.create(ID)
        plan = {
            "dsn": dsn(postgres_settings),
            "schema": postgres_settings.schema_name,
            "directory": str(tmp_path),
            "service": service.url,
            "model": model.url,
            "kill": None,
            "stop": stop,
        }
        sleeper = context().Process(target=told_busy, args=(plan, str(tmp_path / "told")))
        sleeper.start()
        async with asyncio.timeout(60):
            while not (tmp_path / "stopped").exists():  # noqa: ASYNC110 - another process writes it
                await asyncio.sleep(0.05)
            while not await jobs.acquire(ID, "watcher", 0.01):  # noqa: ASYNC110 - the lease ends on the server's clock
                await asyncio.sleep(0.05)
        await asyncio.sleep(0.05)
        job = await work({**plan, "stop": None})
        assert job["stage"] == "completed"
        before = [event.kind for event in await store.events(ID)]
        assert sleeper.pid is not None
        os.kill(sleeper.pid, signal.SIGCONT)
        await asyncio.to_thread(sleeper.join, 60)
        assert sleeper.exitcode == 0
        assert (tmp_path / "told").read_text().startswith(told)
        assert [event.kind for event in await store.events(ID)] == before, "it wrote nothing"
        assert await store.job(ID) == job == json.loads((tmp_path / "results" / f"{ID}.json").read_text())
        assert (service.writes("/reserve"), service.writes("/ship")) == (1, 1)
        await store.close()
    finally:
        await service.close()
        model.close()


def told_busy(plan: dict[str, Any], told: str) -> None:
    """Runs the task, and writes down that it was refused."""
    try:
        asyncio.run(work(plan))
    except MemplaneError as error:
        Path(told).write_text(str(error))
