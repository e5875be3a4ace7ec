"""Checkpoints: K-01 … K-05."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplane.contracts import NodeResult
from memplane.runtime import (
    CheckpointError,
    DefinitionError,
    checkpoint_state,
    create_runtime,
    define_worker,
    graph,
    loop,
    restore_state,
)
from memplane.runtime.canonical import NotJson, canonical_json
from memplane.signal import Signal

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


class Work:
    """Node T.WORK: remembers which graph nodes ran; fails where told to."""

    def __init__(self):
        self.ran = []
        self.fail = None

    async def __call__(self, input, ctx):
        self.ran.append(ctx.execution.node_id)
        if ctx.execution.node_id == self.fail:
            raise ValueError("broken")
        return {"from": ctx.execution.node_id, "input": input}


def setup():
    work, saves = Work(), []
    runtime = create_runtime(workers=[define_worker(type="T", nodes={"T.WORK": work})])
    return runtime, work, saves


def chain():
    return (
        graph("episode")
        .node("a", "T.WORK", [], lambda v: v)
        .node("b", "T.WORK", ["a"], lambda v, o: o["a"]["from"])
        .node("c", "T.WORK", ["b"], lambda v, o: o["b"]["from"])
    )


def test_k01_the_digest_is_that_of_canonical_json():
    saved = checkpoint_state("episode", "v1", {"nested": [1, "hello"]})
    assert saved == {
        "format": 1,
        "scope": "episode",
        "version": "v1",
        "state": {"nested": [1, "hello"]},
        "digest": "465c8df69b433054d987c4b49b3293a377bd4390af4d1278762c22676ad2095a",
    }
    assert restore_state(saved, "episode", "v1") == {"nested": [1, "hello"]}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1"), (-0.0, "0"), (1e21, "1e+21"), (1e20, "100000000000000000000"), (1.5e-7, "1.5e-7"), (0.1, "0.1"),
        (1e-6, "0.000001"), (123.456, "123.456"), (5e-324, "5e-324"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
        ({"b": 1, "a": [True, None]}, '{"a":[true,null],"b":1}'),
        ("\u007f\u2028\n\x1f\"\\", '"\u007f\u2028\\n\\u001f\\"\\\\"'),
        ({"\U0001f600": 1, "\uffff": 2}, '{"\U0001f600":1,"\uffff":2}'),
        ("\ud800", '"\\ud800"'), ([], "[]"), ({}, "{}"),
    ],
)  # fmt: skip
def test_k01_canonical_json_is_spelled_as_ecmascript_does(value, text):
    assert canonical_json(value) == text


@given(json_values)
def test_k01_canonical_json_reads_back_as_the_same_value(value):
    # As in ECMAScript every number is a double: 5.147151400235833e+16 is spelled 51471514002358330.
    assert json.loads(canonical_json(value), parse_int=float) == value


@given(json_values)
def test_k01_equal_values_have_equal_digests_after_a_round_trip(value):
    saved = checkpoint_state("s", "v", value)
    assert restore_state(json.loads(json.dumps(saved)), "s", "v") == value


def test_k02_another_scope_version_or_state_does_not_restore():
    saved = checkpoint_state("episode", "v1", {"n": 1})
    for scope, version in (("other", "v1"), ("episode", "v2")):
        with pytest.raises(CheckpointError, match="incompatible"):
            restore_state(saved, scope, version)
    for altered in (
        {**saved, "state": {"n": 2}},
        {**saved, "digest": "0" * 64},
        {**saved, "digest": None},
        {**saved, "format": 2},
        {key: value for key, value in saved.items() if key != "state"},
        "text",
    ):
        with pytest.raises(CheckpointError):
            restore_state(altered, "episode", "v1")


def test_k02_only_finite_acyclic_json_is_saved():
    cycle = []
    cycle.append(cycle)
    for value in (cycle, {"a": cycle}, float("nan"), float("inf"), lambda: 1, open, {1: 2}, {1, 2}, b"x", object(), 1j):
        with pytest.raises(CheckpointError, match="must be JSON"):
            checkpoint_state("s", "v", value)
    shared = [1]
    assert checkpoint_state("s", "v", [shared, shared])["state"] == [[1], [1]]  # repeated is not cyclic


def test_k02_the_snapshot_is_independent():
    state = {"items": [1]}
    saved = checkpoint_state("s", "v", state)
    state["items"].append(2)
    restored = restore_state(saved, "s", "v")
    restored["items"].append(3)
    assert saved["state"] == {"items": [1]}


def test_canonical_json_names_the_place():
    with pytest.raises(NotJson, match=r"\$\.a\[1\] is not a finite number"):
        canonical_json({"a": [1, float("inf")]})


async def test_k03_completed_nodes_do_not_run_again():
    runtime, work, saves = setup()
    full = await runtime.run(chain(), {"q": 1}, checkpoint={"version": "v1", "save": saves.append})
    with_a = saves[1]
    assert list(with_a["state"]["outputs"]) == ["a"]
    work.ran.clear()
    resumed = await runtime.run(
        chain(), {"q": 1}, checkpoint={"version": "v1", "save": saves.append, "resume": json.loads(json.dumps(with_a))}
    )
    assert work.ran == ["b", "c"]
    assert dict(resumed) == dict(full)


async def test_k03_changed_input_version_or_structure_is_incompatible():
    runtime, work, saves = setup()
    await runtime.run(chain(), {"q": 1}, checkpoint={"version": "v1", "save": saves.append})
    work.ran.clear()
    other = graph("episode").node("a", "T.WORK", [], lambda v: v).node("b", "T.WORK", [], lambda v: v)
    renamed = graph("other").node("a", "T.WORK", [], lambda v: v)
    for plan, input, version in (
        (chain(), {"q": 2}, "v1"),
        (chain(), {"q": 1}, "v2"),
        (other, {"q": 1}, "v1"),
        (renamed, {"q": 1}, "v1"),
    ):
        with pytest.raises(CheckpointError, match="incompatible"):
            await runtime.run(plan, input, checkpoint={"version": version, "save": saves.append, "resume": saves[1]})
    assert work.ran == []


async def test_k03_a_save_failure_ends_the_run_with_that_error():
    runtime, work, _ = setup()
    calls = []

    async def save(document):
        calls.append(document)
        if len(calls) == 2:
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        await runtime.run(chain(), 1, checkpoint={"version": "v1", "save": save})
    assert work.ran == ["a"]


async def test_k04_saved_with_nothing_in_flight_first_empty_then_after_every_wave():
    runtime, _work, _ = setup()
    running, saves = [], []

    async def save(document):
        await asyncio.sleep(0)
        running.append(sum(w["active"] for w in runtime.workers()))
        saves.append(sorted(document["state"]["outputs"]))

    plan = (
        graph("g")
        .node("a", "T.WORK", [], lambda v: v)
        .node("b", "T.WORK", [], lambda v: v)
        .node("c", "T.WORK", ["a", "b"], lambda v: v)
    )
    await runtime.run(plan, 1, checkpoint={"version": "v1", "save": save})
    assert saves == [[], ["a", "b"], ["a", "b", "c"]]
    assert running == [0, 0, 0]
    saves.clear()
    await runtime.run(plan, 1, concurrency=1, checkpoint={"version": "v1", "save": save})
    assert saves == [[], ["a"], ["a", "b"], ["a", "b", "c"]]


async def test_k04_a_failed_node_is_uncertain_and_refuses_to_resume():
    runtime, work, saves = setup()
    work.fail = "b"
    with pytest.raises(ValueError, match="broken"):
        await runtime.run(chain(), 1, checkpoint={"version": "v1", "save": saves.append})
    assert saves[-1]["state"]["uncertain"] == ["b"]
    assert list(saves[-1]["state"]["outputs"]) == ["a"]
    with pytest.raises(CheckpointError, match="uncertain Nodes: b"):
        await runtime.run(chain(), 1, checkpoint={"version": "v1", "save": saves.append, "resume": saves[-1]})
    assert work.ran == ["a", "b"]


async def test_k04_an_aborted_or_cancelled_node_is_uncertain_too():
    started, saves = asyncio.Event(), []

    async def wait(input, ctx):
        started.set()
        await asyncio.Event().wait()

    runtime = create_runtime(workers=[define_worker(type="T", nodes={"T.WAIT": wait})])
    plan = graph("g").node("a", "T.WAIT", [], lambda v: v)
    run = asyncio.create_task(runtime.run(plan, 1, checkpoint={"version": "v1", "save": saves.append}))
    await started.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert saves[-1]["state"]["uncertain"] == ["a"]
    signal = Signal()

    async def abort(input, ctx):
        signal.abort(KeyError("stop"))

    runtime = create_runtime(workers=[define_worker(type="T", nodes={"T.WAIT": abort})])
    with pytest.raises(KeyError):
        await runtime.run(plan, 1, signal=signal, checkpoint={"version": "v1", "save": saves.append})
    assert saves[-1]["state"]["uncertain"] == ["a"]


async def test_k04_node_results_survive_a_resume_and_other_outputs_are_refused():
    async def result(input, ctx):
        return NodeResult("e", "T.RESULT", "success", {"n": 1}) if input else object()

    saves, seen = [], []
    runtime = create_runtime(workers=[define_worker(type="T", nodes={"T.RESULT": result})])
    plan = (
        graph("g").node("a", "T.RESULT", [], lambda v: v).node("b", "T.RESULT", ["a"], lambda v, o: seen.append(o) or v)
    )
    await runtime.run(plan, True, checkpoint={"version": "1", "save": saves.append})
    await runtime.run(plan, True, checkpoint={"version": "1", "save": saves.append, "resume": saves[1]})
    assert [o["a"].unwrap() for o in seen] == [{"n": 1}, {"n": 1}]
    with pytest.raises(CheckpointError, match="outputs must be JSON"):
        await runtime.run(plan, False, checkpoint={"version": "1", "save": saves.append})


@pytest.mark.parametrize("options", [{}, {"version": "", "save": print}, {"version": "v"}, {"version": "v", "save": 1},
                                     5, {"version": "v", "save": print, "typo": 1}])  # fmt: skip
async def test_checkpoint_options_are_checked_before_any_effect(options):
    runtime, work, _ = setup()
    with pytest.raises(DefinitionError, match="heckpoint"):
        await runtime.run(chain(), 1, checkpoint=options)
    assert work.ran == []


def counting(target=3):
    return loop(
        id="count",
        graph=graph("g").node("n", "T.WORK", [], lambda v: v),
        bind=lambda state: state,
        update=lambda state, outputs: {"n": state["n"] + 1},
        done=lambda state: state["n"] >= target,
    )


async def test_k05_a_loop_is_saved_after_each_iteration_and_resumes():
    runtime, work, saves = setup()
    options = {"id": "job-1", "version": "v1", "save": saves.append}
    assert await runtime.loop(counting(), {"n": 0}, state_checkpoint=options) == {"n": 3}
    assert [(s["state"]["iteration"], s["state"]["state"], s["state"]["completed"]) for s in saves] == [
        (1, {"n": 1}, False),
        (2, {"n": 2}, False),
        (3, {"n": 3}, True),
    ]
    assert saves[0]["scope"] == "job-1"
    work.ran.clear()
    assert await runtime.loop(counting(), {"n": 0}, state_checkpoint={**options, "resume": saves[0]}) == {"n": 3}
    assert len(work.ran) == 2
    work.ran.clear()
    assert await runtime.loop(counting(), {"n": 0}, state_checkpoint={**options, "resume": saves[2]}) == {"n": 3}
    assert work.ran == []


async def test_k05_the_iteration_limit_counts_iterations_before_the_resume():
    from memplane.runtime import LoopLimitReached

    runtime, work, saves = setup()
    options = {"id": "j", "version": "v1", "save": saves.append}
    limited = loop(
        id="count",
        graph=graph("g").node("n", "T.WORK", [], lambda v: v),
        bind=lambda s: s,
        update=lambda s: s,
        done=lambda s: False,
        max_iterations=3,
    )
    with pytest.raises(LoopLimitReached):
        await runtime.loop(limited, 0, state_checkpoint=options)
    work.ran.clear()
    with pytest.raises(LoopLimitReached):
        await runtime.loop(limited, 0, state_checkpoint={**options, "resume": saves[1]})
    assert len(work.ran) == 1


async def test_k05_plans_and_graph_checkpoints_are_refused():
    runtime, _, saves = setup()

    def plan(input):
        yield

    with pytest.raises(DefinitionError, match="unsupported"):
        await runtime.loop(
            loop(id="p", plan=plan), 1, state_checkpoint={"id": "i", "version": "v", "save": saves.append}
        )
    with pytest.raises(DefinitionError, match=r"^Use per-Graph checkpoints or a Loop stateCheckpoint$"):
        await runtime.loop(counting(), {"n": 0}, checkpoint={"version": "v", "save": saves.append})
    for bad in ({"version": "v", "save": print}, {"id": "", "version": "v", "save": print}):
        with pytest.raises(DefinitionError, match="heckpoint id"):
            await runtime.loop(counting(), {"n": 0}, state_checkpoint=bad)
    other = checkpoint_state("job-1", "v1", {"loop": "another", "iteration": 1, "state": {}, "completed": False})
    with pytest.raises(CheckpointError, match="incompatible"):
        await runtime.loop(
            counting(), {"n": 0}, state_checkpoint={"id": "job-1", "version": "v1", "save": print, "resume": other}
        )
