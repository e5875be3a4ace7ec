"""One experiment in its folder: services in this process, each step in a new one, both databases read in the end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.model_server import ModelServer, faithful
from experiments.scenarios import Experiment, Step
from memplane.recovery import FulfillmentService, RecoveryStore, start_fulfillment_service

ID = "order-731"
TEXT = "Fulfillment request. SKU: SKU-731; quantity: 2; delivery address: Dock-North."
STEP_SECONDS = 60.0


class Off(Exception):  # noqa: N818 - an observation
    """Something is not as it must be."""


@dataclass
class Row:
    """One line of the table. `off` says what was not as expected."""

    experiment: str
    killed: list[str] = field(default_factory=list)
    outcome: str = ""
    model_calls: int | None = None
    reservations: int = 0
    shipments: int = 0
    stock: int = 0
    off: str | None = None


def run_experiment(experiment: Experiment, folder: Path, model: dict[str, str] | None) -> Row:
    """Run it. model: {baseUrl, name, keyVariable} of a real endpoint; None for the scripted one."""
    folder.mkdir()
    trial = _Trial(experiment, folder, model)
    try:
        trial.create()
        for number, step in enumerate(experiment.steps):
            trial.step(number, step)
        trial.check()
    except (Off, sqlite3.Error, OSError, subprocess.SubprocessError) as problem:
        trial.row.off = str(problem)
    finally:
        trial.close()
    return trial.row


class _Trial:
    def __init__(self, experiment: Experiment, folder: Path, model: dict[str, str] | None) -> None:
        self.experiment, self.folder = experiment, folder
        self.row = Row(experiment.name)
        self.scripted = ModelServer() if model is None else None
        self.model = model or {"baseUrl": self.scripted.url if self.scripted else "", "name": "scripted"}
        self.service = self._start({})

    def _start(self, faults: Any) -> FulfillmentService:
        stock = [{"sku": "SKU-731", "quantity": self.experiment.initial_stock}]
        return asyncio.run(start_fulfillment_service(self.folder / "service.sqlite", stock, faults))

    def create(self) -> None:
        (self.folder / f"{ID}.txt").write_text(TEXT, encoding="utf-8")

        async def create() -> None:
            store = RecoveryStore(self.folder, self.service.url)
            await store.create(ID, self.experiment.approval)
            await store.close()

        asyncio.run(create())

    def step(self, number: int, step: Step) -> None:
        self._arrange(step)
        process = self._begin(number, step)
        try:
            if step.kill_when is not None:
                self._await_request(step.kill_when, process)
                process.send_signal(signal.SIGKILL)
            text, errors = process.communicate(timeout=STEP_SECONDS)
        finally:
            process.kill()
            process.wait()
        where = f"step {number + 1} ({step.entry})"
        killed = step.kill or (f"POST {step.kill_when} under way" if step.kill_when else None)
        if killed is not None:
            if process.returncode != -signal.SIGKILL:
                raise Off(f"{where} was not killed at {killed}: {errors[-300:]}")
            self.row.killed.append(killed)
            return
        if process.returncode != 0:
            raise Off(f"{where} broke: {errors[-300:]}")
        self._compare(where, step, json.loads(text))

    def _compare(self, where: str, step: Step, document: dict[str, Any]) -> None:
        stage, error = document["job"]["stage"], document.get("error")
        if step.raises is not None:
            if error is None or step.raises not in error:
                raise Off(f"{where} should raise {step.raises!r}: {error}")
            self.row.outcome = f"refused: {step.raises}"
        elif error is not None or stage != step.stage:
            raise Off(f"{where} ended at {stage} ({error or document['job']['error']}) instead of {step.stage}")
        else:
            self.row.outcome = stage

    def _begin(self, number: int, step: Step) -> subprocess.Popen[str]:
        plan = {
            "directory": str(self.folder),
            "id": ID,
            "service": self.service.url,
            "model": self.model,
            "entry": step.entry,
            "input": dict(step.input),
            "options": dict(step.options),
            "kill": None if step.kill is None else {"point": step.kill, "occurrence": 1},
        }
        path = self.folder / f"plan-{number + 1}.json"
        path.write_text(json.dumps(plan, indent=2), encoding="utf-8")
        command = [sys.executable, "-m", "experiments.task_process", str(path)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # noqa: S603

    def _arrange(self, step: Step) -> None:
        source = self.folder / f"{ID}.txt"
        if step.before == "change-source":
            source.write_text(TEXT + " Twice.", encoding="utf-8")
        if step.before == "remove-source":
            source.unlink()
        if step.before == "change-order":
            with sqlite3.connect(self.folder / "tasks.sqlite") as connection:
                sql = "UPDATE jobs SET document = json_set(document, '$.order.quantity', 3)"
                connection.execute(sql)
            connection.close()
        if step.before == "wait-committed":
            self._await_committed()
        if step.faults is not None or step.before == "stop-service":
            asyncio.run(self.service.close())
        if step.faults is not None:
            self.service = self._start(step.faults)
        if step.model is not None and self.scripted is not None:
            _behave(self.scripted, step.model)

    def _await_request(self, path: str, process: subprocess.Popen[str]) -> None:
        end = time.monotonic() + STEP_SECONDS
        while self.service.writes(path) == 0:
            if process.poll() is not None or time.monotonic() > end:
                raise Off(f"POST {path} never arrived")
            time.sleep(0.005)

    def _await_committed(self) -> None:
        end = time.monotonic() + STEP_SECONDS
        while self._rows("service.sqlite", "SELECT state FROM operations") != [("committed",)]:
            if time.monotonic() > end:
                raise Off("the operation was never committed")
            time.sleep(0.02)

    def _rows(self, database: str, sql: str) -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(self.folder / database, timeout=10)
        try:
            return connection.execute(sql).fetchall()
        finally:
            connection.close()

    def check(self) -> None:
        """Both databases and the result file, reopened."""
        row, expected = self.row, self.experiment
        row.model_calls = None if self.scripted is None else self.scripted.calls
        row.reservations = self._rows("service.sqlite", "SELECT count(*) FROM reservations")[0][0]
        row.shipments = self._rows("service.sqlite", "SELECT count(*) FROM shipments")[0][0]
        row.stock = self._rows("service.sqlite", "SELECT quantity FROM inventory")[0][0]
        job = json.loads(self._rows("tasks.sqlite", "SELECT document FROM jobs")[0][0])
        for name in ("reservations", "shipments", "stock", "model_calls"):
            found, wanted = getattr(row, name), getattr(expected, name)
            if found is not None and found != wanted:
                raise Off(f"{name}: {found} instead of {wanted}")
        if job["error"] != expected.error:
            raise Off(f"error: {job['error']} instead of {expected.error}")
        posts = self._rows("service.sqlite", "SELECT path, count(*) FROM requests WHERE method = 'POST' GROUP BY path")
        if any(count > 1 for _, count in posts):
            raise Off(f"an operation was submitted twice: {posts}")
        self._check_documents(job)

    def _check_documents(self, job: dict[str, Any]) -> None:
        revisions = self._rows("tasks.sqlite", "SELECT json_extract(data, '$.revision') FROM events ORDER BY number")
        if [number for (number,) in revisions if number is not None] != list(range(job["revision"] + 1)):
            raise Off("the history does not hold every revision once")
        if self.experiment.steps[-1].raises is not None:
            return
        result = json.loads((self.folder / "results" / f"{ID}.json").read_text(encoding="utf-8"))
        if result != job:
            raise Off("the result file is not the task")

    def close(self) -> None:
        asyncio.run(self.service.close())
        if self.scripted is not None:
            self.scripted.close()


def _behave(model: ModelServer, how: str) -> None:
    model.status = 500 if how == "down" else 200
    model.finish_reason = "length" if how == "cut" else "stop"
    forged = json.dumps({"sku": "SKU-731", "quantity": -1, "address": "Dock-North", "stage": "completed"})
    model.answer = (lambda _: forged) if how == "forged" else faithful


def real_model() -> dict[str, str] | None:
    """A real endpoint: EXPERIMENTS_MODEL_URL, EXPERIMENTS_MODEL_NAME, EXPERIMENTS_MODEL_KEY. None: the scripted one."""
    url, name = os.environ.get("EXPERIMENTS_MODEL_URL"), os.environ.get("EXPERIMENTS_MODEL_NAME")
    if not url:
        return None
    if not name:
        raise SystemExit("EXPERIMENTS_MODEL_NAME is required with EXPERIMENTS_MODEL_URL")
    return {"baseUrl": url, "name": name, "keyVariable": "EXPERIMENTS_MODEL_KEY"}
