"""Loops: L-01 … L-12."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from memplane.runtime import (
    DefinitionError,
    LoopLimitReached,
    create_runtime,
    define_worker,
    graph,
    graph_step,
    load_runtime_config,
    loop,
)
from memplane.signal import Signal


class Add:
    """Node T.ADD: input + 1; fails on the inputs it is told to."""

    def __init__(self):
        self.ran = []
        self.fail_on = set()

    async def __call__(self, input, ctx):
        self.ran.append(input)
        if input in self.fail_on:
            raise ValueError(f"broken at {input}")
        return input + 1


ONE = graph("one").node("n", "T.ADD", [], lambda v: v)
TWO = graph("two").node("n", "T.ADD", [], lambda v: v + 10)


def setup(config=None):
    add = Add()
    return create_runtime(config=config, workers=[define_worker(type="T", nodes={"T.ADD": add})]), add


def until(target, **options):
    return loop(
        id="count",
        graph=ONE,
        bind=lambda state: state,
        update=lambda state, outputs: outputs["n"],
        done=lambda state, outputs: state >= target,
        **options,
    )


async def test_l01_select_bind_run_update_done_in_this_order():
    runtime, _ = setup()
    order = []

    def step(name, answer):
        def callback(*arguments):
            order.append((name, arguments[0]))
            return answer(*arguments)

        return callback

    definition = loop(
        id="l",
        graph=step("select", lambda state: ONE),
        bind=step("bind", lambda state: state),
        update=lambda state, outputs: order.append(("update", state, dict(outputs))) or outputs["n"],
        done=lambda state, outputs: order.append(("done", state, dict(outputs))) or state >= 2,
    )
    assert await runtime.loop(definition, 0) == 2
    assert order == [
        ("select", 0), ("bind", 0), ("update", 0, {"n": 1}), ("done", 1, {"n": 1}),
        ("select", 1), ("bind", 1), ("update", 1, {"n": 2}), ("done", 2, {"n": 2}),
    ]  # fmt: skip
    assert await runtime.loop(until(-5), 0) == 1  # at least once


async def test_l01_callbacks_may_be_async():
    runtime, _ = setup()

    async def identity(state):
        return state

    async def select(state):
        return ONE

    async def update(state, outputs):
        return outputs["n"]

    async def done(state):
        return state == 3

    assert await runtime.loop(loop(id="a", graph=select, bind=identity, update=update, done=done), 0) == 3


async def test_l02_the_default_limit_is_32_and_the_last_iteration_may_succeed():
    runtime, add = setup()
    with pytest.raises(LoopLimitReached, match=r"^Loop iteration limit reached$"):
        await runtime.loop(until(1000), 0)
    assert len(add.ran) == 32
    assert await runtime.loop(until(32), 0) == 32


@pytest.mark.parametrize("limit", [0, -1, 1.5, float("nan"), float("inf"), 2**53, True, "3"])
def test_l03_limits_are_positive_integers(limit):
    with pytest.raises(DefinitionError, match="positive integer"):
        until(1, max_iterations=limit)


async def test_l04_definition_beats_settings_beats_32():
    config = load_runtime_config({}, {"runtime": {"loopMaxIterations": 4}})
    runtime, add = setup(config)
    with pytest.raises(LoopLimitReached):
        await runtime.loop(until(1000), 0)
    assert len(add.ran) == 4
    add.ran.clear()
    with pytest.raises(LoopLimitReached):
        await runtime.loop(until(1000, max_iterations=6), 0)
    assert len(add.ran) == 6


async def test_l05_errors_pass_unchanged_and_nothing_is_retried():
    runtime, add = setup()
    add.fail_on = {1}
    updates = []
    error = LookupError("mine")

    def boom(*_):
        raise error

    definition = loop(
        id="l", graph=ONE, bind=lambda s: s, update=lambda s, o: updates.append(s) or o["n"], done=lambda s: False
    )
    with pytest.raises(ValueError, match="broken at 1"):
        await runtime.loop(definition, 0)
    assert add.ran == [0, 1]
    assert updates == [0]
    good = {"graph": ONE, "bind": lambda s: s, "update": lambda s: s, "done": lambda s: True}
    for part in ("graph", "bind", "update", "done"):
        with pytest.raises(LookupError) as caught:
            await runtime.loop(loop(id="l", **{**good, part: boom}), 0)
        assert caught.value is error


async def test_l06_one_definition_serves_concurrent_states():
    runtime, _ = setup()
    definition = until(5)
    states = [{"n": 0}, {"n": 1}]
    lists = loop(
        id="l",
        graph=ONE,
        bind=lambda s: s["n"],
        update=lambda s, o: {"n": o["n"]},
        done=lambda s: s["n"] >= 4,
    )
    assert await asyncio.gather(*(runtime.loop(definition, n) for n in (0, 2, 4))) == [5, 5, 5]
    assert await asyncio.gather(*(runtime.loop(lists, s) for s in states)) == [{"n": 4}, {"n": 4}]
    assert states == [{"n": 0}, {"n": 1}]
    with pytest.raises(AttributeError):
        definition.id = "other"


async def test_l07_the_selector_picks_graphs_and_bindings_go_by_graph_id():
    ran = []

    async def who(input, ctx):
        ran.append((ctx.execution.graph_id, ctx.worker.worker_id))
        return input + 1

    worker = define_worker(type="T", nodes={"T.ADD": who})
    runtime = create_runtime()
    runtime.register(worker, id="a")
    runtime.register(worker, id="b")
    definition = loop(
        id="l",
        graph=lambda state: TWO if state % 2 else ONE,
        bind=lambda s: s,
        update=lambda s: s + 1,
        done=lambda s: s == 4,
    )
    await runtime.loop(definition, 0, bindings={"one": {"n": "b"}, "two": {"n": "a"}})
    assert ran == [("one", "b"), ("two", "a"), ("one", "b"), ("two", "a")]
    with pytest.raises(DefinitionError, match="Unknown graph Node binding: zz"):
        await runtime.loop(definition, 0, bindings={"two": {"zz": "a"}})


async def test_l08_close_drains_an_accepted_loop():
    started, go = asyncio.Event(), asyncio.Event()

    async def slow(input, ctx):
        started.set()
        await go.wait()
        return input + 1

    runtime = create_runtime(workers=[define_worker(type="T", nodes={"T.ADD": slow})])
    running = asyncio.create_task(runtime.loop(until(3), 0))
    await started.wait()
    closing = asyncio.create_task(runtime.close())
    await asyncio.sleep(0)
    go.set()
    assert await running == 3
    await closing


async def test_l09_a_plan_yields_steps_and_every_graph_costs_one_iteration():
    runtime, add = setup()

    def plan(start):
        first = yield graph_step(ONE, start)
        second = yield graph_step(TWO, first["n"])
        return second["n"]

    assert await runtime.loop(loop(id="p", plan=plan), 1) == 13
    add.fail_on = {5}

    def failing(_):
        with contextlib.suppress(ValueError):
            yield graph_step(ONE, 5)
        yield graph_step(ONE, 6)
        yield graph_step(ONE, 7)

    with pytest.raises(LoopLimitReached):
        await runtime.loop(loop(id="p", plan=failing, max_iterations=2), 0)
    assert add.ran[-2:] == [5, 6]


async def test_l09_an_async_generator_may_await_between_steps():
    runtime, _ = setup()
    seen = []

    async def plan(start):
        outputs = yield graph_step(ONE, start)
        await asyncio.sleep(0)
        seen.append(outputs["n"])
        try:
            yield graph_step(graph("none").node("n", "X.NONE", [], lambda v: v), 0)
        except Exception as error:  # noqa: BLE001
            seen.append(type(error).__name__)

    assert await runtime.loop(loop(id="p", plan=plan), 1) is None
    assert seen == [2, "NoWorkerAvailable"]


async def test_l10_limit_and_cancellation_cannot_be_caught_away():
    runtime, add = setup()
    cleaned = []

    def greedy(_):
        try:
            while True:
                try:
                    yield graph_step(ONE, 1)
                except Exception:  # noqa: BLE001
                    cleaned.append("caught")
        finally:
            cleaned.append("finally")
            yield graph_step(ONE, 99)  # must not run

    with pytest.raises(LoopLimitReached):
        await runtime.loop(loop(id="p", plan=greedy, max_iterations=2), 0)
    assert cleaned == ["finally"]
    assert add.ran == [1, 1]
    cleaned.clear()
    signal = Signal()

    async def abort(input, ctx):
        signal.abort(KeyError("stop"))

    aborting = create_runtime(workers=[define_worker(type="T", nodes={"T.ADD": abort})])
    with pytest.raises(KeyError, match="stop"):
        await aborting.loop(loop(id="p", plan=greedy), 0, signal=signal)
    assert cleaned == ["finally"]


async def test_l10_the_same_holds_for_async_plans_and_asyncio_cancellation():
    runtime, _add = setup()
    cleaned = []

    async def greedy(_):
        try:
            while True:
                try:
                    yield graph_step(ONE, 1)
                except Exception:  # noqa: BLE001
                    cleaned.append("caught")
        finally:
            cleaned.append("finally")

    with pytest.raises(LoopLimitReached):
        await runtime.loop(loop(id="p", plan=greedy, max_iterations=2), 0)
    started = asyncio.Event()

    async def wait(input, ctx):
        started.set()
        await asyncio.Event().wait()

    waiting = create_runtime(workers=[define_worker(type="T", nodes={"T.ADD": wait})])
    task = asyncio.create_task(waiting.loop(loop(id="p", plan=greedy), 0))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cleaned == ["finally", "finally"]
    await waiting.close()


async def test_l10_an_uncaught_graph_error_leaves_the_plan_unchanged():
    runtime, add = setup()
    add.fail_on = {1}

    def plan(_):
        yield graph_step(ONE, 1)

    with pytest.raises(ValueError, match="broken at 1"):
        await runtime.loop(loop(id="p", plan=plan), 0)


async def test_l11_on_graph_tells_started_then_completed_or_failed():
    runtime, add = setup()
    add.fail_on = {7}
    events = []

    def plan(_):
        yield graph_step(ONE, 1)
        with contextlib.suppress(ValueError):
            yield graph_step(TWO, -3)

    await runtime.loop(loop(id="p", plan=plan), 0, on_graph=events.append)
    assert events == [
        {"loopId": "p", "iteration": 0, "graphId": "one", "nodes": ("n",), "status": "started"},
        {"loopId": "p", "iteration": 0, "graphId": "one", "nodes": ("n",), "status": "completed"},
        {"loopId": "p", "iteration": 1, "graphId": "two", "nodes": ("n",), "status": "started"},
        {"loopId": "p", "iteration": 1, "graphId": "two", "nodes": ("n",), "status": "failed"},
    ]
    events.clear()
    await runtime.loop(until(2), 0, on_graph=events.append)
    assert [(e["iteration"], e["status"]) for e in events] == [
        (0, "started"), (0, "completed"), (1, "started"), (1, "completed"),
    ]  # fmt: skip


async def test_l11_a_step_with_an_aborted_signal_fails_without_running_a_node():
    runtime, add = setup()
    events, caught = [], []
    stale = Signal()
    stale.abort(KeyError("stale"))

    def plan(_):
        try:
            yield graph_step(ONE, 1, signal=stale)
        except KeyError as error:
            caught.append(error)
        return "survived"

    assert await runtime.loop(loop(id="p", plan=plan), 0, on_graph=events.append, signal=Signal()) == "survived"
    assert [e["status"] for e in events] == ["started", "failed"]
    assert add.ran == []
    assert len(caught) == 1


@pytest.mark.parametrize(("id", "limit"), [("", None), (" ", 3), ("p", 0), ("p", 1.5), (None, 1)])
def test_l12_a_plan_needs_an_id_and_a_positive_limit(id, limit):
    def plan(_):
        yield

    with pytest.raises(DefinitionError, match=r"^Loop ID and positive maxIterations are required$"):
        loop(id=id, plan=plan, max_iterations=limit)


async def test_l12_a_plan_yields_graph_steps_only():
    runtime, add = setup()
    for wrong in (ONE, None, 3):

        def plan(_, wrong=wrong):
            yield wrong

        with pytest.raises(DefinitionError, match=r"^Loop plan must yield graphStep invocations$"):
            await runtime.loop(loop(id="p", plan=plan), 0)
    with pytest.raises(DefinitionError, match="generator"):
        await runtime.loop(loop(id="p", plan=lambda _: 5), 0)
    assert add.ran == []


def test_l12_a_loop_is_either_a_plan_or_its_parts():
    with pytest.raises(DefinitionError, match="either a plan or"):
        loop(id="x", plan=lambda _: None, graph=ONE)
    with pytest.raises(DefinitionError, match="needs graph, bind, update and done"):
        loop(id="x", graph=ONE, bind=lambda s: s)
    with pytest.raises(DefinitionError, match="Loop ID cannot be empty"):
        loop(id="", graph=ONE, bind=lambda s: s, update=lambda s: s, done=lambda s: True)
