"""Promises that hold for any graph, any set of workers, any state: found by generation, not by example."""

from __future__ import annotations

import asyncio
import json

from hypothesis import given
from hypothesis import strategies as st

from memplane.runtime import NoWorkerAvailable, WorkerAddress, create_runtime, define_worker, graph
from memplane.runtime.router import distance, select


@st.composite
def dags(draw):
    """Dependencies per node: each node may depend on any of those before it."""
    count = draw(st.integers(1, 12))
    return [draw(st.lists(st.integers(0, node - 1), unique=True, max_size=4)) if node else [] for node in range(count)]


@given(dags(), st.integers(1, 4), st.sets(st.integers(0, 11)), st.booleans())
def test_any_graph_keeps_order_limit_and_checkpoints(dependencies, limit, yields, with_checkpoint):
    started, finished, running, peak, saves = [], [], set(), [0], []

    async def work(input, ctx):
        name = ctx.execution.node_id
        assert all(f"n{dependency}" in finished for dependency in dependencies[int(name[1:])])
        started.append(name)
        running.add(name)
        peak[0] = max(peak[0], len(running))
        if int(name[1:]) in yields:
            await asyncio.sleep(0)
        running.discard(name)
        finished.append(name)
        return input

    def save(document):
        assert not running
        saves.append(json.loads(json.dumps(document)))

    async def run():
        runtime = create_runtime(workers=[define_worker(type="T", nodes={"T.WORK": work})])
        plan = graph("g")
        for node, needs in enumerate(dependencies):
            plan = plan.node(f"n{node}", "T.WORK", [f"n{n}" for n in needs], lambda _, o: sum(o.values()) + 1)
        options = {"version": "1", "save": save} if with_checkpoint else None
        outputs = await runtime.run(plan, 0, concurrency=limit, checkpoint=options)
        # Every saved state resumes to the same outputs, and runs exactly what was missing.
        for saved in saves[:]:
            started.clear()
            again = await runtime.run(plan, 0, checkpoint={**options, "resume": saved})
            assert dict(again) == dict(outputs)
            assert set(started) == set(outputs) - set(saved["state"]["outputs"])
        return outputs

    outputs = asyncio.run(run())
    assert list(outputs) == [f"n{node}" for node in range(len(dependencies))]
    for node, needs in enumerate(dependencies):
        assert outputs[f"n{node}"] == sum(outputs[f"n{n}"] for n in needs) + 1
    if not with_checkpoint:
        assert peak[0] <= limit


class Worker:
    def __init__(self, number, place, available, active, concurrency):
        self.address = WorkerAddress(f"w{number}", "T", *place)
        self.capabilities = frozenset({"A.B"})
        self.available, self.active, self.concurrency = available, active, concurrency
        self.chosen = {}


places = st.sampled_from([("here", "p"), ("here", "q"), ("there", "p")])
workers = st.lists(st.tuples(places, st.booleans(), st.integers(0, 2), st.none() | st.integers(1, 2)), max_size=6)


@given(workers)
def test_the_nearest_free_worker_takes_the_call_and_equals_take_turns(drawn):
    candidates = [Worker(n, *one) for n, one in enumerate(drawn)]
    free = [w for w in candidates if w.available and (w.concurrency is None or w.active < w.concurrency)]
    picked = []
    for turn in range(1, 2 * len(free) + 1):
        worker = select(candidates, "A.B", host_id="here", process_id="p")
        worker.chosen["A.B"] = turn
        picked.append(worker)
    if not free:
        try:
            select(candidates, "A.B", host_id="here", process_id="p")
        except NoWorkerAvailable:
            return
        raise AssertionError("a full or unavailable worker was chosen")
    nearest = min(distance(w.address, "here", "p") for w in free)
    equals = [w for w in free if distance(w.address, "here", "p") == nearest]
    expected = [equals[turn % len(equals)] for turn in range(2 * len(free))]
    assert picked == expected
