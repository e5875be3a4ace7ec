"""Two processes share the PostgreSQL store: one is killed in the middle of a task, the other one finishes it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from experiments.model_server import ModelServer
from experiments.task_process import kill_myself

from memplane.errors import MemplaneError
from memplane.recovery import FulfillmentService, JobBusy, RecoveryStore, run_checkpoint, start_fulfillment_service
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


@dataclass
class Task:
    """One task on the shared store, with its services; `plan` is what a worker's process gets."""

    folder: Path
    service: FulfillmentService
    jobs: PostgresJobs
    store: RecoveryStore
    plan: dict[str, Any]

    async def lease_ends(self) -> None:
        """Wait until the lease of a worker that is dead or asleep has ended, on the server's clock."""
        async with asyncio.timeout(20):
            while not await self.jobs.acquire(ID, "watcher", 0.01):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await asyncio.sleep(0.05)

    def result(self) -> Any:
        return json.loads((self.folder / "results" / f"{ID}.json").read_text())

    def writes(self) -> tuple[int, int]:
        return self.service.writes("/reserve"), self.service.writes("/ship")


@pytest.fixture
async def task(tmp_path: Path, postgres_settings: PostgresSettings, database: Database) -> AsyncIterator[Task]:
    (tmp_path / f"{ID}.txt").write_text(TEXT, encoding="utf-8")
    model = ModelServer()
    service = await start_fulfillment_service(tmp_path / "service.sqlite", [{"sku": "SKU-731", "quantity": 20}])
    jobs = PostgresJobs(database)
    store = RecoveryStore(tmp_path, service.url, jobs=jobs)
    plan = {
        "dsn": dsn(postgres_settings),
        "schema": postgres_settings.schema_name,
        "directory": str(tmp_path),
        "service": service.url,
        "model": model.url,
        "kill": None,
    }
    try:
        await store.create(ID)
        yield Task(tmp_path, service, jobs, store, plan)
    finally:
        await store.close()
        await service.close()
        model.close()


@pytest.mark.parametrize(
    "point", ["prepared:during", "recovery_operation.reserve.submit:after", "checkpoint-ship:during"]
)
async def test_another_process_finishes_what_a_killed_one_began(task: Task, point: str) -> None:
    first = context().Process(target=process, args=({**task.plan, "kill": point},))
    first.start()
    await asyncio.to_thread(first.join, 60)
    assert first.exitcode == -signal.SIGKILL
    with pytest.raises(JobBusy):
        await work(task.plan)
    await task.lease_ends()
    job = await work(task.plan)
    assert job["stage"] == "completed"
    assert task.writes() == (1, 1)
    assert task.result() == job == await task.store.job(ID)
    revisions = [event.data["revision"] for event in await task.store.events(ID) if "revision" in event.data]
    assert revisions == list(range(job["revision"] + 1))
    await task.service.close()
    with contextlib.closing(sqlite3.connect(task.folder / "service.sqlite")) as connection:
        assert connection.execute("SELECT quantity FROM inventory").fetchone() == (18,)


@pytest.mark.parametrize(
    ("stop", "told"),
    [
        ("recovery_checkpoint.reserve:before", "The task's lease was lost"),
        # The server ends the transaction in which it was stopped, and with it its locks, after ten seconds.
        pytest.param("checkpoint-reserve:during", "postgresql is unavailable", marks=pytest.mark.full),
    ],
)
async def test_a_process_that_slept_through_its_lease_writes_nothing(task: Task, stop: str, told: str) -> None:
    """Stopped while it holds the lease, continued when another process has finished the task."""
    sleeper = context().Process(target=told_busy, args=({**task.plan, "stop": stop}, str(task.folder / "told")))
    sleeper.start()
    async with asyncio.timeout(60):
        while not (task.folder / "stopped").exists():  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.05)
    await task.lease_ends()
    job = await work(task.plan)
    assert job["stage"] == "completed"
    before = [event.kind for event in await task.store.events(ID)]
    assert sleeper.pid is not None
    os.kill(sleeper.pid, signal.SIGCONT)
    await asyncio.to_thread(sleeper.join, 60)
    assert sleeper.exitcode == 0
    assert (task.folder / "told").read_text().startswith(told)
    assert [event.kind for event in await task.store.events(ID)] == before, "it wrote nothing"
    assert await task.store.job(ID) == job == task.result()
    assert task.writes() == (1, 1)


def told_busy(plan: dict[str, Any], told: str) -> None:
    """Runs the task, and writes down that it was refused."""
    try:
        asyncio.run(work(plan))
    except MemplaneError as error:
        Path(told).write_text(str(error))
