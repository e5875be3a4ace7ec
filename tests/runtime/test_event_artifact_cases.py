"""Events and artifacts: RT-15 … RT-18."""

from __future__ import annotations

import asyncio

import pytest

from memplane.contracts import NodeError, NodeResult
from memplane.runtime import (
    ArtifactError,
    DefinitionError,
    InMemoryArtifactStore,
    LocalEventFabric,
    RuntimeClosed,
    TransportError,
    create_runtime,
    define_worker,
)
from memplane.runtime.envelope import decode_payload, encode_payload


async def test_rt15_close_leaves_a_shared_fabric_to_the_others():
    fabric = LocalEventFabric()
    first, second = create_runtime(events=fabric), create_runtime(events=fabric)
    gate, seen = asyncio.Event(), []

    async def slow(event):
        await gate.wait()
        seen.append(("first", event["payload"]))

    first.subscribe("e", slow)
    second.subscribe("e", lambda event: seen.append(("second", event["payload"])))
    first.emit({"type": "e", "payload": 1})
    closing = asyncio.create_task(first.close())
    await asyncio.sleep(0.01)
    assert not closing.done()  # its own running handler is waited for
    gate.set()
    await closing
    with pytest.raises(RuntimeClosed, match="closed"):
        first.emit({"type": "e", "payload": 2})
    second.emit({"type": "e", "payload": 3})
    await second.drain_events()
    assert sorted(seen) == [("first", 1), ("second", 1), ("second", 3)]
    await second.close()


async def test_rt15_an_event_emitted_right_before_close_is_still_delivered():
    seen = []

    async def consume(event):
        seen.append(event["payload"])

    runtime = create_runtime()
    runtime.subscribe("e", consume)
    runtime.emit({"type": "e", "payload": 1})
    await runtime.close()
    assert seen == [1]


async def test_rt16_emit_returns_first_and_failures_are_drained_once():
    runtime = create_runtime()
    seen = []

    def fails(event):
        raise ValueError("consumer")

    async def works(event):
        seen.append(event)

    runtime.subscribe("e", fails)
    runtime.subscribe("e", works)
    event = {"type": "e", "payload": {"n": 1}}
    runtime.emit(event)
    runtime.emit({"type": "nobody listens", "payload": None})
    assert seen == []
    (failure,) = await runtime.drain_events()
    assert seen == [event]
    assert failure.event is event
    assert isinstance(failure.error, ValueError)
    assert await runtime.drain_events() == []


async def test_rt16_draining_inside_a_consumer_does_not_wait_for_itself():
    runtime = create_runtime()
    drained = []

    async def consume(event):
        drained.append(await runtime.drain_events())

    runtime.subscribe("e", consume)
    runtime.emit({"type": "e", "payload": 1})
    await asyncio.wait_for(runtime.drain_events(), 2)
    assert drained == [[]]


@pytest.mark.parametrize("event", [{}, {"type": ""}, {"type": 3}, "e", None])
async def test_rt16_an_event_needs_a_type(event):
    with pytest.raises(DefinitionError, match="Event type"):
        create_runtime().emit(event)


async def test_rt17_a_stale_unsubscribe_never_removes_a_newer_subscription():
    runtime = create_runtime()
    seen = []
    consume = seen.append
    old = runtime.subscribe("e", consume)
    assert old() is True
    assert old() is False
    runtime.subscribe("e", consume)
    assert old() is False
    runtime.emit({"type": "e", "payload": 1})
    await runtime.drain_events()
    assert len(seen) == 1


class Wire:
    """A transport straight into another runtime; keeps what crossed it."""

    id = "wire"

    def __init__(self, runtime):
        self.runtime, self.crossed = runtime, []

    async def invoke(self, envelope, signal=None):
        answer = await self.runtime.receive(envelope)
        self.crossed.append((envelope, answer))
        return answer


def joined(handler, **options):
    """A runtime that reaches `A.B` through a wire, and the wire."""
    far = create_runtime(process_id="far", **options)
    address = dict(far.register(define_worker(type="A", nodes={"A.B": handler})).address)
    wire = Wire(far)
    near = create_runtime(process_id="near", transports=[wire], **options)
    near.register_remote(address=address, capabilities=["A.B"], transport_id="wire")
    return near, wire


async def test_rt18_large_payloads_travel_by_reference_both_ways():
    async def double(input, ctx):
        return {"text": input["text"] * 2}

    store = InMemoryArtifactStore()
    near, wire = joined(double, artifacts=store, inline_limit_bytes=100)
    assert await near.invoke("A.B", {"text": "x" * 200}) == {"text": "x" * 400}
    ((request, answer),) = wire.crossed
    for payload in (request["payload"], answer["payload"]):
        assert payload.keys() == {"kind", "reference"}
        assert payload["kind"] == "reference"
        assert payload["reference"].keys() == {"uri"}
    reference = answer["payload"]["reference"]
    assert await store.get(reference) == {"text": "x" * 400}
    assert await store.delete(reference) is True
    assert await store.delete(reference) is False
    with pytest.raises(ArtifactError, match=r"^Artifact not found$"):
        await store.get(reference)


async def test_rt18_small_payloads_stay_inline_at_exactly_the_limit():
    store = InMemoryArtifactStore()
    assert (await encode_payload("x" * 98, store, 100))["kind"] == "inline"  # 98 and two quotes
    assert (await encode_payload("x" * 99, store, 100))["kind"] == "reference"
    assert (await encode_payload("é" * 50, store, 100))["kind"] == "reference"  # bytes count, not characters
    assert (await encode_payload("x" * 999, None, 100))["kind"] == "inline"


async def test_rt18_a_reference_without_a_store_raises():
    with pytest.raises(ArtifactError, match="needs an artifact store"):
        await decode_payload({"kind": "reference", "reference": {"uri": "memory:1"}}, None)


async def test_rt18_the_store_is_bounded_and_forgets_the_oldest():
    store = InMemoryArtifactStore(max_bytes=30)
    first = await store.put("a" * 10)
    second = await store.put("b" * 10)
    third = await store.put("c" * 10)
    with pytest.raises(ArtifactError, match="not found"):
        await store.get(first)
    assert [await store.get(r) for r in (second, third)] == ["b" * 10, "c" * 10]
    with pytest.raises(ArtifactError, match="larger than the store"):
        await store.put("d" * 40)


async def test_node_results_cross_a_wire_as_node_results():
    async def answer(input, ctx):
        if input == "fail":
            return NodeResult("e1", "A.B", "failed", None, NodeError("X", "y"))
        return NodeResult("e1", "A.B", "success", None if input is None else {"v": input})

    near, _ = joined(answer)
    assert (await near.invoke("A.B", 1)).unwrap() == {"v": 1}
    assert (await near.invoke("A.B", None)) == NodeResult("e1", "A.B", "success", None)
    failed = await near.invoke("A.B", "fail")
    assert (failed.status, failed.error) == ("failed", NodeError("X", "y"))


async def test_only_the_exact_result_of_the_node_is_revived():
    async def passes(input, ctx):
        return input

    near, _ = joined(passes)
    for value in (
        {"executionId": "e", "node": "A.OTHER", "status": "success", "output": 1},
        {"executionId": "e", "node": "A.B", "status": "odd", "output": 1},
        {"executionId": "e", "node": "A.B", "status": "success"},
        {"executionId": "e", "node": "A.B", "status": "success", "output": 1, "more": 2},
        {"executionId": "e", "node": "A.B", "status": "failed", "error": "text"},
        [1, {"a": None}],
    ):
        assert await near.invoke("A.B", value) == value


@pytest.mark.parametrize("value", [object(), {1, 2}, float("nan"), {"a": b"bytes"}])
async def test_only_json_leaves_the_process(value):
    async def passes(input, ctx):
        return 1

    near, wire = joined(passes)
    with pytest.raises(TransportError, match="Only JSON values"):
        await near.invoke("A.B", value)
    assert wire.crossed == []
