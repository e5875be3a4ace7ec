"""SIGKILL at every point of every flow, then the same entry in a new process: nothing twice, lost or torn.

The points are found by running each scenario once with a trace, so that a new tool or step is covered by itself. The
process is real (forked, killed by SIGKILL), the service and the model are reached by HTTP, the tasks are in SQLite.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from experiments.model_server import ModelServer

from memplane.recovery import FulfillmentService, RecoveryStore, start_fulfillment_service
from tests.recovery.forked import run_in_new_process
from tests.recovery.world import ID, TEXT

Point = tuple[str, int]
"""A point's name, and the how-manieth time it is reached."""


@dataclass(frozen=True)
class Scenario:
    """An entry in given circumstances, and how its task must end, killed or not."""

    entry: str
    stage: str
    error: str | None = None
    input: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    faults: Mapping[str, Any] = field(default_factory=dict)
    before: Sequence[tuple[str, Mapping[str, Any]]] = ()
    approval: bool = False
    stock: int = 20


PAUSED = ("run_pause", {})
SCENARIOS = {
    "retry": Scenario("run_retry", "completed"),
    "retry-too-few-attempts": Scenario("run_retry", "failed", "SOURCE_TOO_LARGE", input={"maxAttempts": 1}),
    "fallback": Scenario("run_fallback", "completed", faults={"primary_unavailable": True}),
    "fallback-refused": Scenario("run_fallback", "failed", "INSUFFICIENT_STOCK", stock=1),
    "timeout-in-time": Scenario("run_timeout", "completed", input={"timeoutMs": 60_000}),
    "timeout-late": Scenario(
        "run_timeout", "timed-out", "CATALOG_TIMEOUT", input={"timeoutMs": 20}, faults={"catalog_delay_ms": 300}
    ),
    "checkpoint": Scenario("run_checkpoint", "completed"),
    "checkpoint-reserved": Scenario("run_checkpoint", "reserved", options={"stop_after": "reserved"}),
    "checkpoint-rejected": Scenario(
        "run_checkpoint", "needs-review", "ADDRESS_REJECTED", faults={"reject_shipping": True}
    ),
    "pause": Scenario("run_pause", "paused", approval=True),
    "approved": Scenario(
        "resume_paused",
        "completed",
        before=(PAUSED, ("decide", {"decision": "approve", "actor": "ann"})),
        approval=True,
    ),
    "rejected": Scenario(
        "resume_paused", "rejected", before=(PAUSED, ("decide", {"decision": "reject", "actor": "ann"})), approval=True
    ),
    "session": Scenario("run_session", "reserved", before=(("run_checkpoint", {"stop_after": "reserved"}),)),
    "compensation": Scenario("run_compensation", "compensated", "ADDRESS_REJECTED", faults={"reject_shipping": True}),
    "compensation-refused": Scenario(
        "run_compensation",
        "needs-review",
        "COMPENSATION_RELEASE_REJECTED",
        faults={"reject_shipping": True, "reject_release": True},
    ),
    "check-lost-answer": Scenario("run_side_effect_check", "completed", faults={"drop_reservation_response": True}),
    "check-unknown": Scenario(
        "run_side_effect_check",
        "uncertain",
        "OUTCOME_UNKNOWN",
        faults={"drop_reservation_response": True, "lookup_unavailable_after_write": True},
    ),
    "check-no-stock": Scenario("run_side_effect_check", "failed", "INSUFFICIENT_STOCK", stock=1),
}


class Trial:
    """One scenario in one folder, with services that outlive the processes."""

    def __init__(self, scenario: Scenario, folder: Path, service: FulfillmentService, model: ModelServer) -> None:
        self.scenario, self.folder, self.service, self.model = scenario, folder, service, model

    def run(self, kill: Point | None = None, trace: Path | None = None) -> dict[str, Any] | None:
        """The entry in a new process; None when it was killed."""
        scenario = self.scenario
        return self._process(scenario.entry, scenario.options, scenario.input, kill, trace)

    def prepare(self) -> None:
        for entry, options in self.scenario.before:
            assert self._process(entry, options, {}, None, None) is not None

    def _process(
        self, entry: str, options: Mapping[str, Any], given: Mapping[str, Any], kill: Point | None, trace: Path | None
    ) -> dict[str, Any] | None:
        plan: dict[str, Any] = {
            "directory": str(self.folder),
            "id": ID,
            "service": self.service.url,
            "model": {"baseUrl": self.model.url, "name": "scripted"},
            "entry": entry,
            "options": dict(options),
            "input": dict(given),
            "kill": None if kill is None else {"point": kill[0], "occurrence": kill[1]},
            "trace": None if trace is None else str(trace),
        }
        return run_in_new_process(plan)

    def rows(self, database: str, sql: str) -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(self.folder / database)
        try:
            return connection.execute(sql).fetchall()
        finally:
            connection.close()

    def job(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.rows("tasks.sqlite", "SELECT document FROM jobs")[0][0])
        return document

    def check_safe(self) -> None:
        """What holds at every moment, right after a kill too."""
        assert self.service.writes("/reserve") <= 1
        assert self.service.writes("/ship") <= 1
        assert self.service.writes("/release") <= 1
        reserved = dict(self.rows("service.sqlite", "SELECT status, sum(quantity) FROM reservations GROUP BY status"))
        (stock,) = self.rows("service.sqlite", "SELECT quantity FROM inventory")[0]
        assert stock == self.scenario.stock - reserved.get("active", 0)
        shipments = self.rows("service.sqlite", "SELECT count(*) FROM shipments")[0][0]
        assert shipments <= 1
        operations = dict(self.rows("service.sqlite", "SELECT kind, state FROM operations"))
        if "release" in operations:
            assert operations["ship"] == "rejected"
        job = self.job()
        revisions = self.rows("tasks.sqlite", "SELECT json_extract(data, '$.revision') FROM events ORDER BY number")
        counted = [number for (number,) in revisions if number is not None]
        assert counted == list(range(job["revision"] + 1)), "every revision left exactly one event"
        assert (job["reservation"] is None) or operations["reserve"] == "committed"
        assert (job["stage"] == "completed") == (job["shipment"] is not None)
        assert (job["shipment"] is None) or shipments == 1

    def check_ended(self) -> None:
        """What holds after the entry has run to its end."""
        self.check_safe()
        job, scenario = self.job(), self.scenario
        assert (job["stage"], job["error"]) == (scenario.stage, scenario.error)
        assert json.loads((self.folder / "results" / f"{ID}.json").read_text(encoding="utf-8")) == job
        assert [path.name for path in (self.folder / "results").iterdir()] == [f"{ID}.json"], "nothing is left over"
        if job["stage"] in ("failed", "timed-out", "rejected", "paused"):
            assert self.rows("service.sqlite", "SELECT count(*) FROM reservations") == [(0,)]
        if job["stage"] == "compensated":
            assert self.rows("service.sqlite", "SELECT status FROM reservations") == [("released",)]


@contextmanager
def trial(scenario: Scenario, folder: Path) -> Iterator[Trial]:
    folder.mkdir()
    (folder / f"{ID}.txt").write_text(TEXT, encoding="utf-8")
    model = ModelServer()
    stock = [{"sku": "SKU-731", "quantity": scenario.stock}]
    service = asyncio.run(start_fulfillment_service(folder / "service.sqlite", stock, scenario.faults))
    try:
        asyncio.run(_create(folder, service.url, scenario.approval))
        opened = Trial(scenario, folder, service, model)
        opened.prepare()
        yield opened
    finally:
        asyncio.run(service.close())
        model.close()


async def _create(folder: Path, origin: str, approval: bool) -> None:
    store = RecoveryStore(folder, origin)
    await store.create(ID, approval)
    await store.close()


def points_of(scenario: Scenario, folder: Path) -> list[Point]:
    """Every point that the scenario reaches when nobody kills it."""
    with trial(scenario, folder) as unharmed:
        assert unharmed.run(trace=folder / "trace") is not None
        unharmed.check_ended()
        assert unharmed.run() is not None
        unharmed.check_ended()
    lines = (folder / "trace").read_text(encoding="utf-8").splitlines()
    return [(name, int(time)) for name, time in (line.split("\t") for line in lines)]


def killed_once(scenario: Scenario, folder: Path, point: Point) -> None:
    with trial(scenario, folder) as there:
        before = there.model.calls
        assert there.run(kill=point) is None, f"{point} was not reached"
        there.check_safe()
        prepared = there.job()["stage"] != "queued"
        asked = there.model.calls - before
        assert there.run() is not None
        there.check_ended()
        if prepared and scenario.entry != "run_session":
            assert there.model.calls - before == asked, "a prepared task asks no model"


def killed_twice(scenario: Scenario, folder: Path, first: Point, second: Point) -> None:
    """The second kill hits the resumed run, if it passes that point at all."""
    with trial(scenario, folder) as there:
        assert there.run(kill=first) is None
        there.run(kill=second)
        there.check_safe()
        assert there.run() is not None
        there.check_ended()


def kill_at_each(scenario: Scenario, folder: Path, points: Sequence[Point]) -> None:
    folders = [folder / str(number) for number in range(len(points))]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda place, point: killed_once(scenario, place, point), folders, points))


WHOLE = ("checkpoint",)
"""Killed at all of its points by `make test`; of the others, which share most of the way, that takes one in `PART`."""
PART = 6
PAIRED = ("checkpoint", "compensation", "check-lost-answer")
PAIR_PARTS = 8
"""The pairs of one scenario are several hundred: this many tests share them, of minutes each."""


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_killed_task_ends_as_if_nothing_had_happened(tmp_path: Path, name: str) -> None:
    points = points_of(SCENARIOS[name], tmp_path / "unharmed")
    assert len(points) >= 4
    first = list(SCENARIOS).index(name) % PART
    kill_at_each(SCENARIOS[name], tmp_path, points if name in WHOLE else points[first::PART])


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", [name for name in SCENARIOS if name not in WHOLE])
def test_killed_at_any_point_the_task_ends_as_if_nothing_had_happened(tmp_path: Path, name: str) -> None:
    kill_at_each(SCENARIOS[name], tmp_path, points_of(SCENARIOS[name], tmp_path / "unharmed"))


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(PAIR_PARTS))
@pytest.mark.parametrize("name", PAIRED)
def test_killed_at_any_two_points_the_task_ends_as_if_nothing_had_happened(
    tmp_path: Path, name: str, part: int
) -> None:
    scenario = SCENARIOS[name]
    pairs = list(itertools.product(points_of(scenario, tmp_path / "unharmed"), repeat=2))[part::PAIR_PARTS]
    with ThreadPoolExecutor(4) as pool:
        folders = [tmp_path / str(number) for number in range(len(pairs))]
        list(pool.map(lambda folder, pair: killed_twice(scenario, folder, *pair), folders, pairs))


def test_an_uncertain_task_that_was_killed_is_completed_when_the_service_tells_again(tmp_path: Path) -> None:
    scenario = SCENARIOS["check-unknown"]
    with trial(scenario, tmp_path / "task") as there:
        assert there.run(kill=("recovery_operation.reserve.submit:after", 1)) is None
        assert there.run() is not None
        there.check_ended()
        asyncio.run(there.service.close())
        there.service = asyncio.run(start_fulfillment_service(tmp_path / "task" / "service.sqlite", []))
        assert there.run() is not None
        there.check_safe()
        assert (there.job()["stage"], there.service.writes("/reserve")) == ("completed", 1)
        asyncio.run(there.service.close())


def test_nothing_listens_at_the_points_in_production(tmp_path: Path) -> None:
    from memplane.recovery import probes

    store = RecoveryStore(tmp_path, "http://127.0.0.1:1")
    assert store._probe is probes.unprobed
    assert probes.unprobed("anything:before") is None
    asyncio.run(store.close())
