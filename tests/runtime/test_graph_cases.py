"""Graphs: G-01 … G-13."""

from __future__ import annotations

import asyncio

import pytest

from memplane.runtime import (
    DefinitionError,
    NoWorkerAvailable,
    create_runtime,
    define_worker,
    graph,
    load_runtime_config,
)
from memplane.signal import Signal


async def echo(input, ctx):
    return input


def runtime_of(config=None, **nodes):
    """A runtime whose worker T has a node T.<name> per handler."""
    worker = define_worker(type="T", nodes={f"T.{name}": handler for name, handler in nodes.items()})
    runtime = create_runtime(config=config)
    runtime.register(worker, id="w")
    return runtime


class Peak:
    """Counts how many calls overlap; each yields to the loop a few times."""

    def __init__(self):
        self.running = self.peak = 0
        self.ran = []

    async def __call__(self, input, ctx):
        self.ran.append(ctx.execution.node_id)
        self.running += 1
        self.peak = max(self.peak, self.running)
        for _ in range(3):
            await asyncio.sleep(0)
        self.running -= 1
        return input


def wide(count, node="T.ECHO"):
    plan = graph("wide")
    for index in range(count):
        plan = plan.node(f"n{index}", node, [], lambda value, index=index: index)
    return plan


def test_g01_node_returns_a_new_graph():
    empty = graph(id="agent")
    one = empty.node("a", "T.ECHO", [], lambda v: v)
    two = one.node("b", "T.ECHO", ["a"], lambda v: v)
    assert ([len(g.nodes) for g in (empty, one, two)], empty.id) == ([0, 1, 2], "agent")
    with pytest.raises(AttributeError):
        one.id = "other"
    for blank in ("", " ", None):
        with pytest.raises(DefinitionError, match=r"^Graph ID cannot be empty$"):
            graph(blank)


def test_g02_ids_are_unique_and_dependencies_declared_before():
    plan = graph("g").node("x", "T.ECHO", [], lambda v: v)
    for duplicate in ("x", "", "  "):
        with pytest.raises(DefinitionError, match=f"^Duplicate or empty graph Node ID: {duplicate}$"):
            plan.node(duplicate, "T.ECHO", [], lambda v: v)
    for dependency in ("later", "self"):
        with pytest.raises(DefinitionError, match=f"^Unknown graph dependency: {dependency}$"):
            plan.node("self", "T.ECHO", [dependency], lambda v: v)
    repeated = plan.node("y", "T.ECHO", ["x", "x"], lambda v: v)
    assert repeated.nodes[1].dependencies == ("x",)
    with pytest.raises(DefinitionError, match="invalid type"):
        plan.node("z", "nodot", [], lambda v: v)
    with pytest.raises(DefinitionError, match="must be a list"):
        plan.node("z", "T.ECHO", "x", lambda v: v)


async def test_g03_bind_sees_the_input_and_only_declared_outputs_in_order():
    seen = []

    def join(value, outputs):
        seen.append((value, list(outputs.items())))
        with pytest.raises(TypeError):
            outputs["new"] = 1
        return 0

    plan = (
        graph("g")
        .node("a", "T.ECHO", [], lambda v: "A")
        .node("b", "T.ECHO", [], lambda v: "B")
        .node("c", "T.ECHO", [], lambda v: "C")
        .node("join", "T.ECHO", ["c", "a"], join)
    )
    await runtime_of(ECHO=echo).run(plan, "in")
    assert seen == [("in", [("c", "C"), ("a", "A")])]


async def test_g03_a_bind_with_a_captured_default_takes_the_input_alone():
    plan = graph("g").node("a", "T.ECHO", [], lambda value, k=3: (value, k))
    assert (await runtime_of(ECHO=echo).run(plan, 1))["a"] == (1, 3)


async def test_g03_bind_may_be_async_or_a_builtin():
    async def bind(value):
        return value + 1

    plan = graph("g").node("a", "T.ECHO", [], bind).node("b", "T.ECHO", [], str)
    assert dict(await runtime_of(ECHO=echo).run(plan, 1)) == {"a": 2, "b": "1"}


async def test_g04_independent_nodes_overlap_and_a_join_waits():
    both = asyncio.Barrier(2)
    order = []

    async def meet(input, ctx):
        await both.wait()  # only passes when both run at once
        order.append(ctx.execution.node_id)

    async def after(input, ctx):
        order.append("join")

    plan = (
        graph("g")
        .node("a", "T.MEET", [], lambda v: v)
        .node("b", "T.MEET", [], lambda v: v)
        .node("join", "T.AFTER", ["a", "b"], lambda v, o: v)
    )
    await asyncio.wait_for(runtime_of(MEET=meet, AFTER=after).run(plan, 1), 5)
    assert sorted(order[:2]) == ["a", "b"]
    assert order[2:] == ["join"]


async def test_g05_concurrency_option_beats_settings_beats_unlimited():
    for configured, option, expected in ((None, 2, 2), (3, None, 3), (3, 2, 2), (None, None, 6)):
        peak = Peak()
        settings = {} if configured is None else {"runtime": {"graphConcurrency": configured}}
        runtime = runtime_of(load_runtime_config({}, settings), ECHO=peak)
        await runtime.run(wide(6), 0, concurrency=option)
        assert peak.peak == expected


@pytest.mark.parametrize("concurrency", [0, -1, 1.5, float("nan"), True, "2"])
async def test_g05_a_bad_limit_stops_before_any_effect(concurrency):
    peak = Peak()
    with pytest.raises(DefinitionError, match=r"^Graph concurrency must be a positive integer$"):
        await runtime_of(ECHO=peak).run(wide(2), 0, concurrency=concurrency)
    assert peak.ran == []


async def test_g06_the_first_error_is_raised_after_the_running_sibling_finished():
    error, finished = ValueError("first"), []

    async def work(input, ctx):
        if ctx.execution.node_id == "a":
            raise error
        await asyncio.sleep(0.01)
        finished.append(ctx.execution.node_id)

    plan = graph("g")
    for name in ("a", "b", "c"):
        plan = plan.node(name, "T.WORK", [], lambda v: v)
    with pytest.raises(ValueError) as caught:
        await runtime_of(WORK=work).run(plan, 0, concurrency=2)
    assert caught.value is error
    assert finished == ["b"]


async def test_g07_a_bind_that_raises_is_a_node_failure_and_a_failed_status_is_data():
    ran = []

    async def fail(input, ctx):
        ran.append(ctx.execution.node_id)
        return {"status": "failed", "error": {"code": "X", "message": "y"}}

    def check(value, outputs):
        if outputs["a"]["status"] != "success":
            raise LookupError(outputs["a"]["error"]["code"])

    goes_on = graph("g").node("a", "T.FAIL", [], lambda v: v).node("b", "T.FAIL", ["a"], lambda v: v)
    assert (await runtime_of(FAIL=fail).run(goes_on, 0))["b"]["status"] == "failed"
    ran.clear()
    with pytest.raises(LookupError, match="X"):
        await runtime_of(FAIL=fail).run(
            graph("g").node("a", "T.FAIL", [], lambda v: v).node("b", "T.FAIL", ["a"], check), 0
        )
    assert ran == ["a"]


async def test_g08_after_an_abort_nothing_starts_and_what_runs_is_drained():
    signal, seen, finished = Signal(), [], []

    async def work(input, ctx):
        seen.append(ctx.signal)
        signal.abort(KeyError("stop"))
        await asyncio.sleep(0.01)
        finished.append(ctx.execution.node_id)

    plan = graph("g").node("a", "T.WORK", [], lambda v: v).node("b", "T.WORK", [], lambda v: v)
    with pytest.raises(KeyError, match="stop"):
        await runtime_of(WORK=work).run(plan, 0, signal=signal, concurrency=1)
    assert seen == [signal]
    assert finished == ["a"]


async def test_g08_a_pre_aborted_signal_is_raised_before_any_bind():
    signal, bound = Signal(), []
    signal.abort(KeyError("stop"))
    with pytest.raises(KeyError):
        await runtime_of(ECHO=echo).run(graph("g").node("a", "T.ECHO", [], bound.append), 0, signal=signal)
    assert bound == []


async def test_g08_an_abort_between_scheduling_and_starting_is_seen():
    signal, ran = Signal(), []

    async def work(input, ctx):
        ran.append(ctx.execution.node_id)
        signal.abort(KeyError("stop"))

    with pytest.raises(KeyError, match="stop"):
        await runtime_of(ECHO=work).run(wide(5), 0, signal=signal)
    assert ran == ["n0"]


async def test_g08_asyncio_cancellation_cancels_every_running_node_and_waits_for_it():
    cleaned, started = [], asyncio.Event()

    async def work(input, ctx):
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            cleaned.append(ctx.execution.node_id)

    runtime = runtime_of(ECHO=work)
    run = asyncio.create_task(runtime.run(wide(3), 0))
    await started.wait()
    await asyncio.sleep(0)
    before = asyncio.all_tasks()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert sorted(cleaned) == ["n0", "n1", "n2"]
    assert len(asyncio.all_tasks()) == len(before) - 4
    await asyncio.wait_for(runtime.close(), 2)


async def test_g09_bindings_are_checked_before_any_effect():
    ran = []

    async def who(input, ctx):
        ran.append(ctx.worker.worker_id)
        return ctx.worker.worker_id

    worker = define_worker(type="T", nodes={"T.WHO": who})
    runtime = create_runtime()
    runtime.register(worker, id="a")
    bound = runtime.register(worker, id="b")
    runtime.register(define_worker(type="O", nodes={"O.X": who}), id="other")
    plan = graph("g").node("n", "T.WHO", [], lambda v: v).node("m", "T.WHO", [], lambda v: v)
    with pytest.raises(DefinitionError, match=r"^Unknown graph Node binding: zz$"):
        await runtime.run(plan, 0, bindings={"zz": "a"})
    for worker_id in ("other", "nobody"):
        with pytest.raises(DefinitionError, match=rf"^Worker {worker_id} does not expose T\.WHO$"):
            await runtime.run(plan, 0, bindings={"n": worker_id})
    assert ran == []
    for _ in range(3):
        assert (await runtime.run(plan, 0, bindings={"n": "b"}))["n"] == "b"
    bound.set_available(False)
    with pytest.raises(NoWorkerAvailable):
        await runtime.run(plan, 0, bindings={"n": "b"})


@pytest.mark.parametrize("name", ["constructor", "__proto__", "__class__", "toString", "get"])
async def test_g10_any_node_id_works(name):
    plan = graph("g").node(name, "T.ECHO", [], lambda v: v).node("next", "T.ECHO", [name], lambda v, o: o[name])
    outputs = await runtime_of(ECHO=echo).run(plan, 5)
    assert (outputs[name], outputs["next"]) == (5, 5)


async def test_g11_one_run_id_per_run_and_a_frozen_result():
    scopes = []

    async def scope(input, ctx):
        scopes.append(ctx.execution)

    runtime = runtime_of(ECHO=scope)
    outputs = await runtime.run(wide(3), 0)
    await runtime.run(wide(1), 0)
    assert {s.graph_id for s in scopes} == {"wide"}
    assert [s.node_id for s in scopes] == ["n0", "n1", "n2", "n0"]
    assert len({s.run_id for s in scopes[:3]}) == 1
    assert scopes[0].run_id != scopes[3].run_id
    assert list(outputs) == ["n0", "n1", "n2"]
    with pytest.raises(TypeError):
        outputs["n0"] = 1
    assert dict(await runtime.run(graph("empty"), 0)) == {}


async def test_g12_a_full_worker_fails_the_second_node_unless_the_graph_is_limited():
    async def slow(input, ctx):
        await asyncio.sleep(0.01)
        return input

    runtime = create_runtime(workers=[define_worker(type="T", nodes={"T.SLOW": slow}, concurrency=1)])
    with pytest.raises(NoWorkerAvailable):
        await runtime.run(wide(2, "T.SLOW"), 0)
    assert dict(await runtime.run(wide(2, "T.SLOW"), 0, concurrency=1)) == {"n0": 0, "n1": 1}


async def test_g13_partial_results_are_separate_graphs_gathered_by_the_caller():
    async def work(input, ctx):
        if input == "bad":
            raise ValueError(input)
        return input

    runtime = runtime_of(WORK=work)
    plans = [graph(name).node("n", "T.WORK", [], lambda v, name=name: name) for name in ("one", "bad", "two")]
    outcomes = await asyncio.gather(*(runtime.run(plan, 0) for plan in plans), return_exceptions=True)
    assert [o["n"] if not isinstance(o, BaseException) else str(o) for o in outcomes] == ["one", "bad", "two"]
    signal = Signal()
    signal.abort(KeyError("stop"))
    outcomes = await asyncio.gather(*(runtime.run(plan, 0, signal=signal) for plan in plans), return_exceptions=True)
    assert all(isinstance(outcome, KeyError) for outcome in outcomes)


async def test_a_graph_of_a_thousand_nodes_in_a_chain_and_side_by_side():
    plan = graph("chain").node("n0", "T.ECHO", [], lambda v: v)
    for index in range(1, 1000):
        plan = plan.node(f"n{index}", "T.ECHO", [f"n{index - 1}"], lambda v, o: next(iter(o.values())) + 1)
    runtime = runtime_of(ECHO=echo)
    assert (await runtime.run(plan, 0))["n999"] == 999
    assert len(await runtime.run(wide(1000), 0, concurrency=10)) == 1000
