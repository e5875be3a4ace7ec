"""Registration, routing, invoke, close: RT-01 … RT-14."""

from __future__ import annotations

import asyncio

import pytest

from memplane.runtime import (
    DefinitionError,
    NoWorkerAvailable,
    RuntimeClosed,
    Sandbox,
    create_runtime,
    define_worker,
    graph,
)
from memplane.signal import Signal


async def echo(input, ctx):
    return input


def named(node="A.B"):
    """A worker whose node answers with the id of the replica that ran it."""

    async def whoami(input, ctx):
        return ctx.worker.worker_id

    return define_worker(type="A", nodes={node: whoami})


class Gate:
    """A handler that says when it started and waits to be let through."""

    def __init__(self):
        self.started = asyncio.Event()
        self.open = asyncio.Event()
        self.finished = 0

    async def __call__(self, input, ctx):
        self.started.set()
        await self.open.wait()
        self.finished += 1
        return input


class FakeTransport:
    def __init__(self, id="t"):
        self.id = id
        self.envelopes = []

    async def invoke(self, envelope, signal=None):
        self.envelopes.append(envelope)
        value = envelope["target"]["workerId"]
        return {"invocationId": envelope["id"], "payload": {"kind": "inline", "value": value}}


def remote(worker_id, host="far", process="p2"):
    return {"workerId": worker_id, "workerType": "A", "hostId": host, "processId": process}


async def test_rt01_workers_lists_addresses_and_load():
    gate = Gate()
    runtime = create_runtime(workers=[define_worker(type="A", nodes={"A.B": gate}, concurrency=3)])
    call = asyncio.create_task(runtime.invoke("A.B", 1))
    await gate.started.wait()
    (listed,) = runtime.workers()
    assert listed["address"].keys() == {"workerId", "workerType", "hostId", "processId"}
    assert listed["address"]["hostId"] == "local"
    assert (listed["address"]["workerType"], listed["capabilities"]) == ("A", ["A.B"])
    assert (listed["available"], listed["active"], listed["concurrency"]) == (True, 1, 3)
    gate.open.set()
    await call
    assert runtime.workers()[0]["active"] == 0
    other = create_runtime(workers=[named()])
    assert other.workers()[0]["address"]["processId"] != listed["address"]["processId"]
    assert other.workers()[0]["address"]["workerId"] != listed["address"]["workerId"]


async def test_rt02_ids_are_unique_and_resources_belong_to_a_registration():
    made = []

    def resources():
        made.append(object())
        return made[-1]

    async def mine(input, ctx):
        return ctx.resources

    worker = define_worker(type="A", nodes={"A.B": mine}, resources=resources)
    runtime = create_runtime()
    runtime.register(worker, id="x")
    with pytest.raises(DefinitionError, match=r"^Duplicate or empty Worker ID: x$"):
        runtime.register(worker, id="x")
    with pytest.raises(DefinitionError, match="Duplicate or empty Worker ID"):
        runtime.register(worker, id=" ")
    runtime.register(worker, id="y")
    assert len(made) == 2
    assert await runtime.invoke("A.B", 1, worker_id="x") is made[0]
    assert await runtime.invoke("A.B", 1, worker_id="y") is made[1]


async def test_rt03_replicas_rotate_and_unavailable_ones_are_skipped():
    runtime = create_runtime()
    first = runtime.register(named(), id="a")
    second = runtime.register(named(), id="b")
    assert [await runtime.invoke("A.B", 0) for _ in range(4)] == ["a", "b", "a", "b"]
    first.set_available(False)
    assert [await runtime.invoke("A.B", 0) for _ in range(2)] == ["b", "b"]
    first.set_available(True)
    assert await runtime.invoke("A.B", 0) == "a"
    assert first.unregister() is True
    assert first.unregister() is False
    second.unregister()
    with pytest.raises(NoWorkerAvailable, match=r"^No available Worker implements A\.B$"):
        await runtime.invoke("A.B", 0)


async def test_rt03_a_stale_handle_does_not_unregister_its_successor():
    runtime = create_runtime()
    old = runtime.register(named(), id="a")
    old.unregister()
    runtime.register(named(), id="a")
    assert old.unregister() is False
    assert await runtime.invoke("A.B", 0) == "a"


async def test_rt04_nearest_first_and_the_graph_does_not_change():
    transport = FakeTransport()
    runtime = create_runtime(host_id="here", process_id="p1", transports=[transport])
    far = runtime.register_remote(address=remote("far"), capabilities=["A.B"], transport_id="t")
    near = runtime.register_remote(address=remote("near", host="here"), capabilities=["A.B"], transport_id="t")
    local = runtime.register(named(), id="local")
    plan = graph("g").node("n", "A.B", [], lambda value: value)
    assert (await runtime.run(plan, 0))["n"] == "local"
    local.set_available(False)
    assert (await runtime.run(plan, 0))["n"] == "near"
    near.set_available(False)
    assert (await runtime.run(plan, 0))["n"] == "far"
    far.set_available(False)
    with pytest.raises(NoWorkerAvailable):
        await runtime.run(plan, 0)


async def test_rt05_objects_pass_by_identity():
    given, made = object(), {"f": lambda: 1}
    seen = []

    async def handler(input, ctx):
        seen.append(input)
        return made

    runtime = create_runtime(workers=[define_worker(type="A", nodes={"A.B": handler})], inline_limit_bytes=0)
    assert await runtime.invoke("A.B", given) is made
    assert seen == [given]


async def test_rt06_a_pinned_call_never_falls_back():
    gate = Gate()
    runtime = create_runtime()
    runtime.register(named(), id="free")
    pinned = runtime.register(define_worker(type="A", nodes={"A.B": gate}, concurrency=1), id="pinned")
    runtime.register(named("A.OTHER"), id="other")
    call = asyncio.create_task(runtime.invoke("A.B", 1, worker_id="pinned"))
    await gate.started.wait()
    for worker_id in ("pinned", "other", "nobody"):
        with pytest.raises(NoWorkerAvailable):
            await runtime.invoke("A.B", 1, worker_id=worker_id)
    gate.open.set()
    assert await call == 1
    pinned.set_available(False)
    with pytest.raises(NoWorkerAvailable):
        await runtime.invoke("A.B", 1, worker_id="pinned")
    assert await runtime.invoke("A.B", 1, worker_id="free") == "free"


async def test_rt07_remote_registration_is_checked():
    runtime = create_runtime(process_id="p1", transports=[FakeTransport()])
    with pytest.raises(DefinitionError, match=r"^Transport is not installed: x$"):
        runtime.register_remote(address=remote("w"), capabilities=["A.B"], transport_id="x")
    with pytest.raises(DefinitionError, match=r"^Use register for Workers in the current process$"):
        runtime.register_remote(address=remote("w", "local", "p1"), capabilities=["A.B"], transport_id="t")
    with pytest.raises(DefinitionError, match="Worker concurrency must be a positive integer"):
        runtime.register_remote(address=remote("w"), capabilities=["A.B"], transport_id="t", concurrency=0)
    with pytest.raises(DefinitionError, match="capabilities"):
        runtime.register_remote(address=remote("w"), capabilities=[], transport_id="t")
    with pytest.raises(DefinitionError, match="A Worker address needs"):
        runtime.register_remote(address={"workerId": "w"}, capabilities=["A.B"], transport_id="t")
    with pytest.raises(DefinitionError, match="Duplicate or empty Transport ID"):
        create_runtime(transports=[FakeTransport("t"), FakeTransport("t")])


async def test_rt10_ctx_invoke_carries_source_execution_and_both_signals():
    seen = {}

    async def inner(input, ctx):
        seen.update(source=ctx.source, execution=ctx.execution, signal=ctx.signal)
        return input + 1

    async def outer(input, ctx):
        seen["outer"] = ctx
        return await ctx.invoke("B.INNER", input, signal=seen.get("extra"))

    runtime = create_runtime()
    runtime.register(define_worker(type="A", nodes={"A.OUTER": outer}), id="outer")
    runtime.register(define_worker(type="B", nodes={"B.INNER": inner}), id="inner")
    plan = graph("g").node("first", "A.OUTER", [], lambda value: value)
    assert (await runtime.run(plan, 1))["first"] == 2
    assert seen["source"].worker_id == "outer"
    assert seen["execution"] == seen["outer"].execution
    assert (seen["execution"].graph_id, seen["execution"].node_id) == ("g", "first")
    assert seen["signal"] is None
    caller = Signal()
    await runtime.invoke("A.OUTER", 1, signal=caller)
    assert seen["signal"] is caller
    seen["extra"] = Signal()
    await runtime.invoke("A.OUTER", 1, signal=caller)
    assert seen["signal"] not in (caller, seen["extra"])
    assert caller._callbacks == []  # the long-lived signal does not remember the call
    seen["extra"].abort(ValueError("handler's"))
    with pytest.raises(ValueError, match="handler's"):
        await runtime.invoke("A.OUTER", 1, signal=caller)


async def test_rt10_ctx_run_stays_on_the_replica_and_takes_no_capacity():
    ran = []

    async def inner(input, ctx):
        ran.append((ctx.worker.worker_id, ctx.execution.graph_id))
        return input

    async def outer(input, ctx):
        plan = graph("inner").node("a", "A.INNER", [], lambda v: v).node("b", "A.INNER", ["a"], lambda v, o: o["a"])
        return dict(await ctx.run(plan, input))

    worker = define_worker(type="A", nodes={"A.OUTER": outer, "A.INNER": inner}, concurrency=1)
    runtime = create_runtime()
    runtime.register(worker, id="one")
    runtime.register(worker, id="two")
    assert await runtime.invoke("A.OUTER", 7, worker_id="two") == {"a": 7, "b": 7}
    assert ran == [("two", "inner"), ("two", "inner")]


async def test_rt10_ctx_run_checks_every_node_before_any_effect():
    effects = []

    async def inner(input, ctx):
        effects.append(input)

    async def outer(input, ctx):
        plan = graph("g").node("a", "A.INNER", [], lambda v: v).node("b", "C.FOREIGN", [], lambda v: v)
        await ctx.run(plan, input)

    runtime = create_runtime(workers=[define_worker(type="A", nodes={"A.OUTER": outer, "A.INNER": inner})])
    with pytest.raises(DefinitionError, match=r"^Worker does not implement C\.FOREIGN$"):
        await runtime.invoke("A.OUTER", 1)
    assert effects == []


async def test_rt11_each_registration_has_its_own_services():
    async def allowed(input, ctx):
        return ctx.sandbox.allows("tools", input), ctx.services["sandbox"] is ctx.sandbox, ctx.services.get("name")

    async def through(input, ctx):
        return await ctx.invoke("B.ASK", input)

    runtime = create_runtime(sandbox={"tools": ["base"]})
    ask = define_worker(type="B", nodes={"B.ASK": allowed})
    runtime.register(ask, id="plain")
    runtime.register(ask, id="own", services={"sandbox": {"tools": ["own"]}, "name": "n"})
    runtime.register(define_worker(type="A", nodes={"A.T": through}), services={"sandbox": Sandbox({"tools": ["a"]})})
    assert await runtime.invoke("B.ASK", "base", worker_id="plain") == (True, True, None)
    assert await runtime.invoke("B.ASK", "base", worker_id="own") == (False, True, "n")
    assert await runtime.invoke("B.ASK", "own", worker_id="own") == (True, True, "n")
    # ctx.invoke uses the destination's services, never the caller's.
    answers = {(await runtime.invoke("A.T", "a"))[0] for _ in range(2)}
    assert answers == {False}


async def test_rt12_abort_before_and_during_raises_the_reason():
    gate = Gate()
    runtime = create_runtime(workers=[define_worker(type="A", nodes={"A.B": gate})])
    early = Signal()
    early.abort(KeyError("early"))
    with pytest.raises(KeyError, match="early"):
        await runtime.invoke("A.B", 1, signal=early)
    assert not gate.started.is_set()
    signal = Signal()
    call = asyncio.create_task(runtime.invoke("A.B", 1, signal=signal))
    await gate.started.wait()
    signal.abort(KeyError("late"))
    await asyncio.sleep(0)
    assert not call.done()  # the handler is awaited, not cut
    gate.open.set()
    with pytest.raises(KeyError, match="late"):
        await call
    assert gate.finished == 1


async def test_rt12_the_reason_outranks_the_handlers_own_error():
    signal = Signal()

    async def handler(input, ctx):
        signal.abort(KeyError("reason"))
        raise ValueError("mine")

    runtime = create_runtime(workers=[define_worker(type="A", nodes={"A.B": handler})])
    with pytest.raises(KeyError, match="reason"):
        await runtime.invoke("A.B", 1, signal=signal)


async def test_asyncio_cancellation_cancels_the_handler_and_frees_its_place():
    gate = Gate()
    runtime = create_runtime(workers=[define_worker(type="A", nodes={"A.B": gate}, concurrency=1)])
    call = asyncio.create_task(runtime.invoke("A.B", 1))
    await gate.started.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert gate.finished == 0
    assert runtime.workers()[0]["active"] == 0
    await runtime.close()


async def test_rt13_close_drains_an_accepted_graph_with_nested_calls():
    gate, disposed = Gate(), []

    async def nested(input, ctx):
        return await ctx.invoke("A.ECHO", input)

    worker = define_worker(
        type="A", nodes={"A.GATE": gate, "A.NESTED": nested, "A.ECHO": echo}, dispose=lambda _: disposed.append(1)
    )
    runtime = create_runtime(workers=[worker])
    plan = graph("g").node("a", "A.GATE", [], lambda v: v).node("b", "A.NESTED", ["a"], lambda v, o: o["a"])
    run = asyncio.create_task(runtime.run(plan, 3))
    await gate.started.wait()
    first = asyncio.create_task(runtime.close())
    second = asyncio.create_task(runtime.close())
    await asyncio.sleep(0)
    for refused in (runtime.invoke("A.ECHO", 1), runtime.run(plan, 1)):
        with pytest.raises(RuntimeClosed, match=r"^Runtime is closed$"):
            await refused
    with pytest.raises(RuntimeClosed):
        runtime.register(worker)
    assert not first.done()
    assert disposed == []
    gate.open.set()
    await asyncio.gather(first, second)
    assert dict(await run) == {"a": 3, "b": 3}
    assert disposed == [1]
    await runtime.close()
    assert disposed == [1]


async def test_rt13_a_cancelled_close_goes_on_draining():
    gate = Gate()
    runtime = create_runtime(workers=[define_worker(type="A", nodes={"A.B": gate})])
    call = asyncio.create_task(runtime.invoke("A.B", 1))
    await gate.started.wait()
    closing = asyncio.create_task(runtime.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    gate.open.set()
    assert await call == 1
    await runtime.close()


async def test_rt14_handle_close_drains_and_disposes_once():
    gate, disposed = Gate(), []

    async def dispose(resources):
        disposed.append(resources)

    worker = define_worker(type="A", nodes={"A.B": gate}, resources=lambda: "r", dispose=dispose)
    runtime = create_runtime()
    handle = runtime.register(worker, id="w")
    call = asyncio.create_task(runtime.invoke("A.B", 1))
    await gate.started.wait()
    closing = asyncio.create_task(handle.close())
    await asyncio.sleep(0)
    with pytest.raises(NoWorkerAvailable):
        await runtime.invoke("A.B", 1)
    assert disposed == []
    gate.open.set()
    await closing
    assert await call == 1
    await handle.close()
    await runtime.close()
    assert disposed == ["r"]


async def test_rt14_dispose_failures_surface_as_one_error():
    def fail(resources):
        raise OSError("pool")

    disposed = []
    runtime = create_runtime()
    runtime.register(define_worker(type="A", nodes={"A.B": echo}, dispose=fail))
    runtime.register(define_worker(type="A", nodes={"A.B": echo}, dispose=lambda _: disposed.append(1)))
    unregistered = runtime.register(define_worker(type="A", nodes={"A.B": echo}, dispose=lambda _: disposed.append(2)))
    unregistered.unregister()
    with pytest.raises(ExceptionGroup, match="Worker cleanup failed") as caught:
        await runtime.close()
    assert [type(error) for error in caught.value.exceptions] == [OSError]
    assert sorted(disposed) == [1, 2]


async def test_nothing_is_left_behind():
    before = asyncio.all_tasks()
    gate = Gate()
    gate.open.set()
    runtime = create_runtime(workers=[define_worker(type="A", nodes={"A.B": gate, "A.ECHO": echo})])
    plan = graph("g")
    for index in range(20):
        plan = plan.node(f"n{index}", "A.ECHO", [], lambda v: v)
    await runtime.run(plan, 1)
    runtime.subscribe("e", lambda event: None)
    runtime.emit({"type": "e", "payload": 1})
    await runtime.close()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
