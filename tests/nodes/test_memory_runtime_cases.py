"""Cases M-49, M-53, M-59 and M-61 to M-64: the six nodes inside a runtime, in this process and over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.nodes.fakes import CrudStore, SearchingStore

from memplane.contracts import NODES, CallOptions, Scope
from memplane.nodes import create_memory, create_memory_worker
from memplane.plugins.inmemory import InMemoryBackend
from memplane.retrieval import RemoteRetrievalSearchProvider, RetrievalTargetRegistry, create_retrieval_worker
from memplane.runtime import (
    HttpTransport,
    NoWorkerAvailable,
    Runtime,
    create_runtime,
    graph,
    load_runtime_config,
    serve_http,
)
from memplane.signal import Signal

CONFIG = load_runtime_config({}, {"workers": {"memory": {"queryLimit": 3, "searchLimit": 2}}})


async def test_m49_request_beats_factory_beats_yaml() -> None:
    store = SearchingStore(query={"items": []}, search=[])
    defaults = {"queryLimit": 4}
    worker = create_memory_worker(store=store, defaults=defaults)
    defaults["queryLimit"] = 99
    runtime = create_runtime(config=CONFIG, workers=[worker])
    await runtime.invoke("MEMORY.QUERY", {})
    await asyncio.gather(
        runtime.invoke("MEMORY.SEARCH", {"query": "x"}),
        runtime.invoke("MEMORY.QUERY", {"limit": 7}),
        runtime.invoke("MEMORY.QUERY", {}),
    )
    assert [seen["limit"] for _, seen, _ in store.calls] == [4, 2, 7, 4]
    await runtime.close()


async def test_m53_the_sdk_takes_yaml_only_when_told() -> None:
    store = SearchingStore(query={"items": []})
    await create_memory(store=store).query({})
    await create_memory(store=store, defaults=CONFIG.memory).query({})
    assert [seen["limit"] for _, seen, _ in store.calls] == [100, 3]


async def test_m59_through_the_runtime_the_caller_sees_the_reason_raised() -> None:
    class Reason(Exception):
        pass

    signal = Signal()

    def abort(input: Any, options: CallOptions) -> Any:
        signal.abort(Reason())
        return {"items": []}

    runtime = create_runtime(workers=[create_memory_worker(store=SearchingStore(query=abort))])
    with pytest.raises(Reason):
        await runtime.invoke("MEMORY.QUERY", {}, signal=signal)
    await runtime.close()


async def test_m59_the_signal_reaches_a_retrieval_provider_behind_search() -> None:
    signal = Signal()
    reasons: list[BaseException | None] = []

    class Waiting:
        async def search(self, request: Any, context: Any) -> Any:
            asyncio.get_running_loop().call_soon(signal.abort)
            reasons.append(await context.signal.wait())
            return {"candidates": [], "target": request["target"]}

    targets = RetrievalTargetRegistry({"docs": {"defaultStrategy": "any", "providers": {"any": Waiting()}}})
    memory = create_memory_worker(store=CrudStore(), search=RemoteRetrievalSearchProvider(target={"name": "docs"}))
    runtime = create_runtime(workers=[memory, create_retrieval_worker(providers=targets)])
    with pytest.raises(BaseException) as caught:
        await runtime.invoke("MEMORY.SEARCH", {"query": "x"}, signal=signal)
    assert caught.value is signal.reason
    assert reasons == [signal.reason]
    await runtime.close()


async def test_m61_registrations_share_plugins_and_closing_drains_and_closes_none() -> None:
    release, started = asyncio.Event(), asyncio.Event()

    class Store(SearchingStore):
        closed = False

        async def query(self, input: Any, options: CallOptions) -> Any:
            self.calls.append(("query", input, options))
            started.set()
            await release.wait()
            return {"items": []}

        async def close(self) -> None:
            self.closed = True

    store = Store()
    worker = create_memory_worker(store=store)
    runtime = create_runtime()
    for name in ("one", "two"):
        runtime.register(worker, id=name)
    assert [entry["address"]["workerType"] for entry in runtime.workers()] == ["MEMORY", "MEMORY"]
    assert [set(entry["capabilities"]) for entry in runtime.workers()] == [set(NODES), set(NODES)]
    calls = [asyncio.create_task(runtime.invoke("MEMORY.QUERY", {}, worker_id=name)) for name in ("one", "two")]
    await started.wait()
    closing = asyncio.create_task(runtime.close())
    await asyncio.sleep(0)
    assert not closing.done()
    release.set()
    assert [(await call).status for call in calls] == ["success", "success"]
    await closing
    assert len(store.calls) == 2
    assert not store.closed


async def test_m62_capacity_has_no_queue_and_the_sdk_no_limit() -> None:
    release, started = asyncio.Event(), asyncio.Semaphore(0)

    class Store(SearchingStore):
        async def get(self, input: Any, options: CallOptions) -> Any:
            started.release()
            await release.wait()
            return []

    store = Store()
    runtime = create_runtime(workers=[create_memory_worker(store=store, concurrency=1)])
    first = asyncio.create_task(runtime.invoke("MEMORY.GET", {"ids": ["1"]}))
    await started.acquire()
    with pytest.raises(NoWorkerAvailable, match=r"^No available Worker implements MEMORY\.GET$"):
        await runtime.invoke("MEMORY.GET", {"ids": ["1"]})
    memory = create_memory(store=store)
    direct = [asyncio.create_task(memory.get({"ids": ["1"]})) for _ in range(20)]
    for _ in direct:
        await started.acquire()
    release.set()
    assert (await first).status == "success"
    assert [(await call).status for call in direct] == ["success"] * 20
    await runtime.close()


async def _remote(near: Runtime, transport: HttpTransport, far: Runtime) -> None:
    [worker] = far.workers()
    near.register_remote(
        address=worker["address"], capabilities=worker["capabilities"], transport_id=transport.id, concurrency=None
    )


async def test_m63_m64_over_http_everything_is_the_same() -> None:
    store = InMemoryBackend().scoped(Scope("t", "u"))
    far = create_runtime(workers=[create_memory_worker(store=store)], host_id="far")
    server = await serve_http(far, token="t" * 32)
    transport = HttpTransport(id="http", url=server.url, token="t" * 32)
    near = create_runtime(transports=[transport], host_id="near")
    await _remote(near, transport, far)
    try:
        draft = {"content": {"text": "remote"}}
        [written] = (await near.invoke("MEMORY.WRITE", {"memories": [draft]})).unwrap()
        assert (await near.invoke("MEMORY.GET", {"ids": [written["id"]]})).unwrap() == [written]
        assert len((await near.invoke("MEMORY.SEARCH", {"query": "remote"})).unwrap()) == 1
        # M-64: a failed NodeResult is an answer like any other, no HTTP error.
        bad = await near.invoke("MEMORY.WRITE", {"memories": "x"})
        assert (bad.status, bad.error.code, bad.error.message) == (
            "failed",
            "INVALID_INPUT",
            "memories must be an array",
        )
    finally:
        await near.close()
        await transport.close()
        await server.close()
        await far.close()


async def test_search_results_flow_through_a_graph() -> None:
    store = InMemoryBackend().scoped(Scope("t", "u"))
    runtime = create_runtime(workers=[create_memory_worker(store=store)])
    plan = (
        graph("remember-and-find")
        .node("write", "MEMORY.WRITE", [], lambda text: {"memories": [{"content": text}]})
        .node("search", "MEMORY.SEARCH", ["write"], lambda text, outputs: {"query": text, "limit": 5})
        .node("read", "MEMORY.GET", ["search"], lambda text, outputs: {"ids": _hit_ids(outputs["search"])})
    )
    outputs = await runtime.run(plan, "a walk through a graph")
    assert [item["content"] for item in outputs["read"].unwrap()] == ["a walk through a graph"]
    await runtime.close()


def _hit_ids(result: Any) -> list[str]:
    return [hit["memory"]["id"] for hit in result.unwrap()]
