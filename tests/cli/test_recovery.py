"""`memplane recovery` and `memplane fulfillment`: a task from the command line, interrupted and resumed."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from experiments.model_server import ModelServer

from memplane.recovery import RecoveryStore, start_fulfillment_service
from memplane.recovery.documents import new_job
from memplane.recovery.runner import JobRunner, next_entry, serve
from memplane.runtime import create_runtime
from memplane.signal import Signal
from memplane.workers import OpenAIChatProvider, create_context_worker, create_infer_worker, create_interaction_worker
from tests.cli.conftest import Command

TEXT = "Fulfillment request. SKU: SKU-731; quantity: 2; delivery address: Dock-North."
STOCK = [{"sku": "SKU-731", "quantity": 20}]


@pytest.fixture
def model() -> Iterator[ModelServer]:
    server = ModelServer()
    yield server
    server.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    chosen = tmp_path / "tasks"
    chosen.mkdir()
    for name in ("one", "two"):
        (chosen / f"{name}.txt").write_text(TEXT, encoding="utf-8")
    return chosen


def options(folder: Path, url: str, model: ModelServer) -> list[str]:
    return ["--folder", str(folder), "--service", url, "--model-url", model.url, "--model", "scripted"]


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_task_runs_waits_is_decided_and_completes(
    request: pytest.FixtureRequest, kind: str, folder: Path, model: ModelServer
) -> None:
    command: Command = request.getfixturevalue("bare" if kind == "sqlite" else "memplane")
    where = ["--sqlite", "--folder", str(folder)] if kind == "sqlite" else []
    flags = ["--sqlite"] if kind == "sqlite" else []
    service = asyncio.run(start_fulfillment_service(folder / "service.sqlite", STOCK))
    try:
        running = [*flags, *options(folder, service.url, model)]
        ran = command.json("recovery", "run", "one", "--requires-approval", *running)
        assert [(one["id"], one["stage"]) for one in ran] == [("one", "paused")]
        assert command.json("recovery", "resume", "one", *running)[0]["stage"] == "paused"
        assert service.writes("/reserve") == 0
        assert command.json("recovery", "decide", "one", "approve", *where)[0]["stage"] == "approved"
        assert command("recovery", "decide", "one", "approve", *where).exit_code == 1
        assert command.json("recovery", "resume", "one", *running)[0]["stage"] == "completed"
        assert command.json("recovery", "show", "one", *where)["stage"] == "completed"
        kinds = [event["kind"] for event in command.json("recovery", "show", "one", "--history", *where)]
        assert kinds[0] == "created"
        assert "decided" in kinds
        listed = command.json("recovery", "list", "--stage", "completed", *where)
        assert [job["id"] for job in listed] == ["one"]
    finally:
        asyncio.run(service.close())


def test_stuck_tasks_are_taken_up_again(bare: Command, folder: Path, model: ModelServer) -> None:
    service = asyncio.run(start_fulfillment_service(folder / "s.sqlite", STOCK, {"lookup_unavailable": True}))
    for name in ("one", "two"):
        ran = bare.json("recovery", "run", name, "--sqlite", *options(folder, service.url, model))
        assert ran[0]["stage"] == "uncertain"
    asyncio.run(service.close())
    service = asyncio.run(start_fulfillment_service(folder / "s.sqlite", STOCK))
    try:
        ran = bare.json("recovery", "resume", "--stuck", "--sqlite", *options(folder, service.url, model))
        assert [(one["id"], one["stage"]) for one in ran] == [("one", "completed"), ("two", "completed")]
        assert bare.json("recovery", "resume", "--stuck", "--sqlite", *options(folder, service.url, model)) == []
    finally:
        asyncio.run(service.close())


def test_the_service_and_the_worker_run_until_they_are_told_to_stop(
    bare: Command, folder: Path, model: ModelServer
) -> None:
    memplane = [str(Path(sys.executable).parent / "memplane")]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MEMPLANE_")}
    serving = [*memplane, "--json", "fulfillment", "serve", "--database", str(folder / "s.sqlite")]
    with subprocess.Popen(
        [*serving, "--stock", "SKU-731=20", "--port", "0"], stdout=subprocess.PIPE, text=True, env=environment
    ) as service:
        assert service.stdout is not None
        url = json.loads(service.stdout.readline())["url"]
        ran = bare.json("recovery", "run", "one", "--sqlite", "--requires-approval", *options(folder, url, model))
        assert ran[0]["stage"] == "paused"
        bare.json("recovery", "decide", "one", "approve", "--sqlite", "--folder", str(folder))
        worker = [*memplane, "recovery", "serve", "--sqlite", *options(folder, url, model), "--poll-seconds", "0.1"]
        with subprocess.Popen(worker, env=environment) as running:
            result = folder / "results" / "one.json"
            for _ in range(600):
                if json.loads(result.read_text(encoding="utf-8"))["stage"] == "completed":
                    break
                time.sleep(0.05)  # another process writes it
            assert json.loads(result.read_text(encoding="utf-8"))["stage"] == "completed"
            running.terminate()
            assert running.wait(30) == 0
        service.terminate()
        assert service.wait(30) == 0


async def test_a_task_that_raises_is_not_tried_every_round(folder: Path, model: ModelServer) -> None:
    model.answer = lambda _: "no order at all"
    service = await start_fulfillment_service(folder / "s.sqlite", STOCK)
    store = RecoveryStore(folder, service.url)
    await store.create("one")
    provider = OpenAIChatProvider(base_url=model.url)
    runtime = create_runtime(
        sandbox={"tools": [tool.name for tool in store.tools], "network": [store.origin, provider.origin]},
        workers=[
            create_context_worker(),
            create_infer_worker(providers={"openai": provider}),
            create_interaction_worker(tools=list(store.tools)),
        ],
    )
    runner = JobRunner(store.database, runtime, {"provider": "openai", "model": "scripted"})
    try:
        await serve(runner, Signal.timeout(1.0), poll_seconds=0.02, stuck_seconds=3600)
        assert model.calls == 1
        await serve(runner, Signal.timeout(1.0), poll_seconds=0.02, stuck_seconds=0.1)
        assert model.calls >= 2
    finally:
        await runtime.close()
        await provider.close()
        await store.close()
        await service.close()


def test_wrong_use_is_told(bare: Command, folder: Path) -> None:
    assert bare("recovery", "list", "--sqlite").exit_code == 3
    assert bare("recovery", "show", "nothing", "--sqlite", "--folder", str(folder)).exit_code == 1
    serving = ["fulfillment", "serve", "--database", str(folder / "s.sqlite")]
    assert bare(*serving, "--stock", "SKU").exit_code == 3
    assert bare(*serving, "--fault", "nonsense").exit_code == 3
    assert bare(*serving, "--fault", "catalog_delay_ms").exit_code == 3


@pytest.mark.parametrize(
    ("fields", "flow", "entry"),
    [
        ({"stage": "queued"}, "checkpoint", "run_checkpoint"),
        ({"stage": "queued", "requiresApproval": True}, "checkpoint", "run_pause"),
        ({"stage": "paused", "requiresApproval": True}, "checkpoint", None),
        ({"stage": "uncertain"}, "retry", "run_retry"),
        ({"stage": "timed-out"}, "timeout", "run_timeout"),
        ({"stage": "reserved"}, "compensation", "run_compensation"),
        ({"stage": "needs-review", "reservation": {}, "error": "ADDRESS_REJECTED"}, "compensation", "run_compensation"),
        ({"stage": "needs-review", "reservation": {}, "error": "ADDRESS_REJECTED"}, "checkpoint", None),
        ({"stage": "needs-review", "reservation": {}, "error": "COMPENSATION_X"}, "compensation", None),
        ({"stage": "completed"}, "compensation", None),
        ({"stage": "failed"}, "compensation", None),
        ({"stage": "rejected", "requiresApproval": True}, "compensation", None),
    ],
)
def test_what_a_task_needs_next(fields: dict[str, object], flow: str, entry: str | None) -> None:
    found = next_entry({**new_job("j", "h", requires_approval=False), **fields}, flow)
    assert (None if found is None else found.__name__) == entry
