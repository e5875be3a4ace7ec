"""How fast a rebuild goes, what it logs, and how long it waits: without any server."""

from __future__ import annotations

import logging

import pytest

from memplane.errors import TargetUnavailable
from memplane.outbox.events import Target
from memplane.rebuild import Logged, Progress, Stage
from memplane.rebuild.fill import Pace
from memplane.rebuild.outlast import outlast
from memplane.signal import Signal


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_rate_is_kept_however_the_pages_fall() -> None:
    clock = Clock()
    pace = Pace(100, clock)
    assert pace.wait_seconds(50) == 0
    assert pace.wait_seconds(50) == pytest.approx(0.5)
    assert pace.wait_seconds(200) == pytest.approx(1.0)
    clock.now += 3.0
    assert pace.wait_seconds(10) == 0, "3 s have room for 300, all of which have been used up"
    clock.now += 60
    assert pace.wait_seconds(100) == 0
    assert pace.wait_seconds(100) == pytest.approx(1.0), "a pause is no credit"


def test_no_rate_is_no_limit() -> None:
    pace = Pace(0, Clock())
    assert [pace.wait_seconds(10**6) for _ in range(3)] == [0, 0, 0]


def test_progress_is_logged_by_stage_and_by_time(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "memplane.rebuild")
    clock, told = Clock(), list[Progress]()
    logged = Logged(Target.MILVUS, told.append, seconds=10, clock=clock)
    for seconds, stage in [(0, Stage.FILL), (5, Stage.FILL), (6, Stage.FILL), (7, Stage.REPAIR), (8, Stage.REPAIR)]:
        clock.now = 100.0 + seconds * 2
        logged(Progress(stage, seconds, 10, "a note"))
    lines = [(record.__dict__["stage"], record.__dict__["done"]) for record in caplog.records]
    assert lines == [("fill", 0), ("fill", 5), ("repair", 7)]
    assert len(told) == 5
    assert caplog.records[0].__dict__["target"] == "milvus"


async def test_a_step_outlasts_an_absent_target_until_its_time_is_over() -> None:
    clock, left = Clock(), 2

    async def step() -> str:
        nonlocal left
        if left:
            left -= 1
            raise TargetUnavailable("milvus", "scripted")
        return "done"

    assert await outlast(step, Signal(), seconds=10, clock=clock) == "done"

    async def never() -> str:
        clock.now += 6
        raise TimeoutError

    with pytest.raises(TargetUnavailable):
        await outlast(never, Signal(), seconds=10, clock=clock)


async def test_a_stopped_rebuild_does_not_wait() -> None:
    stop = Signal()
    stop.abort()

    async def step() -> str:
        raise TargetUnavailable("milvus", "scripted")

    with pytest.raises(TargetUnavailable, match="scripted"):
        await outlast(step, stop)
