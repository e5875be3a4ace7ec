"""Cases R-01 to R-16: the RETRIEVAL.SEARCH node, its registry, its worker."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.retrieval.fakes import Provider, ask, fault, registry

from memplane.contracts import Scope
from memplane.errors import PluginError, RetrievalError
from memplane.nodes import create_memory_worker
from memplane.plugins.inmemory import InMemoryBackend
from memplane.retrieval import (
    RetrievalTargetRegistry,
    create_retrieval,
    create_retrieval_worker,
    retrieval_search_node,
)
from memplane.runtime import NoWorkerAvailable, create_runtime, load_runtime_config
from memplane.signal import Signal

CANDIDATE = {"content": "text"}


async def test_r01_nothing_offers_retrieval_unless_registered() -> None:
    store = InMemoryBackend().scoped(Scope("t", "u"))
    runtime = create_runtime(workers=[create_memory_worker(store=store)])
    with pytest.raises(NoWorkerAvailable):
        await runtime.invoke("RETRIEVAL.SEARCH", ask())
    assert (await runtime.invoke("MEMORY.SEARCH", {"query": "x"})).status == "success"
    assert len(runtime.workers()) == 1
    await runtime.close()


async def test_r02_the_targets_default_strategy_is_chosen_passed_on_and_reported() -> None:
    provider = Provider((CANDIDATE,))
    given = ask()
    result = await create_retrieval(providers=registry(provider)).search(given)
    assert provider.requests == [{**ask(), "strategy": "vector", "limit": 10}]
    assert result.unwrap()["strategy"] == "vector"
    assert given == ask()
    assert result.as_wire() == {
        "executionId": result.execution_id,
        "node": "RETRIEVAL.SEARCH",
        "status": "success",
        "output": {"candidates": [CANDIDATE], "target": {"name": "docs"}, "strategy": "vector"},
    }


async def test_r03_the_output_has_the_requested_target_and_everything_else_unchanged() -> None:
    target = {"name": "docs", "type": "index", "namespace": "n", "metadata": {"a": 1}}
    candidate = {"content": 1, "score": 3, "source": {"target": "t", "ref": "r"}, "metadata": {"m": 1}}
    output = {"candidates": [candidate], "target": {"name": "docs"}, "metadata": {"took": 5}}
    result = await create_retrieval(providers=registry(Provider(output))).search(ask(target=target))
    assert result.unwrap() == {**output, "target": target, "strategy": "vector"}


async def test_r04_the_registry_is_a_snapshot() -> None:
    first, second = Provider(), Provider()
    document: dict[str, Any] = {"defaultStrategy": "a", "providers": {"a": first, "b": second}}
    retrieval = create_retrieval(providers=RetrievalTargetRegistry({"docs": document}))
    document["defaultStrategy"] = "b"
    document["providers"].clear()
    await retrieval.search(ask())
    assert (len(first.requests), len(second.requests)) == (1, 0)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"strategy": "unknown"}, "RETRIEVAL_STRATEGY_UNSUPPORTED"),
        ({"strategy": "__proto__"}, "RETRIEVAL_STRATEGY_UNSUPPORTED"),
        ({"target": {"name": "unknown"}}, "RETRIEVAL_TARGET_NOT_FOUND"),
        ({"target": {"name": "__proto__"}}, "RETRIEVAL_TARGET_NOT_FOUND"),
    ],
)
async def test_r05_unknown_strategies_and_targets(fields: dict[str, Any], code: str) -> None:
    provider = Provider()
    result = await create_retrieval(providers=registry(provider)).search(ask(**fields))
    assert fault(result) == ("failed", code)
    assert provider.requests == []


@pytest.mark.parametrize("strategy", ["rag", "RAG", "  Rag "])
async def test_r06_rag_is_no_strategy(strategy: str) -> None:
    result = await create_retrieval(providers=registry(Provider())).search(ask(strategy=strategy))
    assert fault(result) == ("failed", "RETRIEVAL_STRATEGY_UNSUPPORTED")
    with pytest.raises(RetrievalError) as caught:
        registry(Provider(), strategy)
    assert caught.value.code == "RETRIEVAL_STRATEGY_UNSUPPORTED"


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        "x",
        ask(target={}),
        ask(target={"name": " "}),
        ask(target={"name": 1}),
        ask(target=None),
        ask(target={"name": "docs", "type": ""}),
        ask(target={"name": "docs", "namespace": None}),
        ask(target={"name": "docs", "metadata": []}),
        ask(query={}),
        ask(query="x"),
        ask(query={"content": 1, "metadata": None}),
        ask(limit=None),
        ask(limit=0),
        ask(limit=10001),
        ask(limit=1.1),
        ask(limit=True),
        ask(filter=[]),
        ask(filter=None),
        ask(options="bad"),
        ask(strategy=" "),
        ask(strategy=None),
    ],
)
async def test_r07_malformed_input_is_refused_before_any_lookup(value: Any) -> None:
    class Untouched:
        def resolve(self, target: Any, strategy: Any) -> Any:
            raise AssertionError("looked up")

    result = await create_retrieval(providers=Untouched()).search(value)
    assert fault(result) == ("failed", "RETRIEVAL_INVALID_INPUT")


@pytest.mark.parametrize("content", [None, 0, "", [], {"any": "thing"}])
async def test_r07_query_content_may_be_anything(content: Any) -> None:
    provider = Provider()
    result = await create_retrieval(providers=registry(provider)).search(ask(query={"content": content}))
    assert result.status == "success"
    assert provider.requests[0]["query"] == {"content": content}


async def test_r08_request_beats_factory_beats_yaml_beats_ten() -> None:
    provider = Provider()
    config = load_runtime_config({}, {"workers": {"retrieval": {"searchLimit": 2}}})
    defaults = {"searchLimit": 3}
    worker = create_retrieval_worker(providers=registry(provider), defaults=defaults)
    plain = create_retrieval_worker(providers=registry(provider))
    defaults["searchLimit"] = 99
    runtime = create_runtime(config=config, workers=[worker])
    await runtime.invoke("RETRIEVAL.SEARCH", ask())
    await runtime.invoke("RETRIEVAL.SEARCH", ask(limit=1))
    await runtime.close()
    runtime = create_runtime(config=config, workers=[plain])
    await runtime.invoke("RETRIEVAL.SEARCH", ask())
    await runtime.close()
    await create_retrieval(providers=registry(provider), defaults=config.retrieval).search(ask())
    await create_retrieval(providers=registry(provider)).search(ask())
    assert [request["limit"] for request in provider.requests] == [3, 1, 2, 2, 10]


@pytest.mark.parametrize(
    "defaults",
    [
        {"searchLimit": 0},
        {"searchLimit": 10001},
        {"searchLimit": None},
        {"hybrid": {"rrfK": 0}},
        {"hybrid": {"candidateLimit": 10001}},
        {"hybrid": 5},
        {"embedding": {"batchSize": 3000}},
        {"embedding": {"dimensions": 0}},
        {"rerank": {"candidateLimit": 0}},
        {"unknown": 1},
        {"hybrid": {"unknown": 1}},
        [],
    ],
)
def test_r09_bad_defaults_raise_at_construction(defaults: Any) -> None:
    with pytest.raises(RetrievalError) as caught:
        create_retrieval(providers=registry(Provider()), defaults=defaults)
    assert caught.value.code == "RETRIEVAL_INVALID_INPUT"
    with pytest.raises(RetrievalError):
        create_retrieval_worker(providers=registry(Provider()), defaults=defaults)


@pytest.mark.parametrize(
    "table",
    [
        {"docs": {"defaultStrategy": "other", "providers": {"vector": Provider()}}},
        {"docs": {"providers": {"vector": Provider()}}},
        {"docs": {"defaultStrategy": "vector"}},
        {"docs": {"defaultStrategy": "vector", "providers": {"vector": object()}}},
        {" ": {"defaultStrategy": "vector", "providers": {"vector": Provider()}}},
        {"docs": None},
        [],
    ],
)
def test_r09_a_malformed_registry_raises(table: Any) -> None:
    with pytest.raises(RetrievalError):
        RetrievalTargetRegistry(table)


async def test_r10_retrieval_errors_pass_and_others_are_hidden() -> None:
    denied = Provider(RetrievalError("RETRIEVAL_PERMISSION_DENIED", "not for you"))
    result = await create_retrieval(providers=registry(denied)).search(ask())
    assert fault(result) == ("failed", "RETRIEVAL_PERMISSION_DENIED")
    assert result.error is not None
    assert result.error.message == "not for you"
    for error in (RuntimeError("password=secret"), PluginError("CONFLICT", "secret")):
        result = await create_retrieval(providers=registry(Provider(error))).search(ask())
        assert fault(result) == ("failed", "RETRIEVAL_BACKEND_ERROR")
        assert result.error is not None
        assert result.error.message == "Retrieval backend operation failed"
        assert "secret" not in json.dumps(result.as_wire())


async def test_r10_errors_of_the_registry_pass_too() -> None:
    class Refusing:
        async def resolve(self, target: Any, strategy: Any) -> Any:
            raise RetrievalError("RETRIEVAL_PERMISSION_DENIED", "no")

    result = await create_retrieval(providers=Refusing()).search(ask())
    assert fault(result) == ("failed", "RETRIEVAL_PERMISSION_DENIED")


async def test_r11_timeouts_and_aborts_have_a_status_of_their_own() -> None:
    slow = Provider(RetrievalError("RETRIEVAL_TIMEOUT", "too slow"))
    assert fault(await create_retrieval(providers=registry(slow)).search(ask())) == ("timeout", "RETRIEVAL_TIMEOUT")
    signal = Signal()
    signal.abort()
    provider = Provider()
    retrieval = create_retrieval(providers=registry(provider))
    for value in (ask(), None):
        assert fault(await retrieval.search(value, signal=signal)) == ("cancelled", "RETRIEVAL_CANCELLED")
    assert provider.requests == []


async def test_r11_an_abort_during_the_search_outranks_its_outcome() -> None:
    for outcome in ((), RuntimeError("x"), RetrievalError("RETRIEVAL_TIMEOUT", "x")):
        signal = Signal()

        def abort(request: Any, context: Any, signal: Signal = signal, outcome: Any = outcome) -> Any:
            assert context.signal is signal
            signal.abort()
            return outcome

        result = await create_retrieval(providers=registry(Provider(abort))).search(ask(), signal=signal)
        assert fault(result) == ("cancelled", "RETRIEVAL_CANCELLED")


async def test_cancelling_the_task_raises_cancelled_error() -> None:
    started = asyncio.Event()

    class Hanging:
        async def search(self, request: Any, context: Any) -> Any:
            started.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(create_retrieval(providers=registry(Hanging())).search(ask(), signal=Signal()))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("resolution", [None, {}, object(), "provider"])
async def test_r12_an_unusable_resolution_is_provider_unavailable(resolution: Any) -> None:
    class Resolving:
        def resolve(self, target: Any, strategy: Any) -> Any:
            return resolution

    result = await create_retrieval(providers=Resolving()).search(ask())
    assert fault(result) == ("failed", "RETRIEVAL_PROVIDER_UNAVAILABLE")


def out(*candidates: Any, **fields: Any) -> dict[str, Any]:
    return {"candidates": list(candidates), "target": {"name": "docs"}, **fields}


@pytest.mark.parametrize(
    "output",
    [
        None,
        [],
        {"candidates": None, "target": {"name": "docs"}},
        {"candidates": []},
        out({}),
        out(None),
        out({"id": "1"}),
        out(CANDIDATE, target={"name": "other"}),
        out(CANDIDATE, target={"name": "docs", "namespace": "foreign"}),
        out(CANDIDATE, target={"name": "docs", "type": "other"}),
        out({"content": 1, "score": float("inf")}),
        out({"content": 1, "score": float("nan")}),
        out({"content": 1, "score": "1"}),
        out({"content": 1, "score": None}),
        out({"content": 1, "source": {"ref": 5}}),
        out({"content": 1, "source": {"target": ""}}),
        out({"content": 1, "source": []}),
        out({"content": 1, "id": " "}),
        out({"content": 1, "id": 1}),
        out({"content": 1, "metadata": []}),
        out({"content": 1, "metadata": None}),
        out(CANDIDATE, CANDIDATE, CANDIDATE),
        out(CANDIDATE, strategy="keyword"),
        out(CANDIDATE, metadata=None),
    ],
)
async def test_r13_malformed_outputs(output: Any) -> None:
    result = await create_retrieval(providers=registry(Provider(output))).search(ask(limit=2))
    assert fault(result) == ("failed", "RETRIEVAL_INVALID_BACKEND_OUTPUT")


async def test_r14_ids_may_be_absent_or_repeated_and_order_and_scores_stay() -> None:
    candidates = ({"content": 1, "id": "a", "score": -3}, {"content": 2, "id": "a", "score": 12}, {"content": None})
    result = await create_retrieval(providers=registry(Provider(candidates))).search(ask())
    assert result.unwrap()["candidates"] == list(candidates)


async def test_r15_replicas_take_one_call_each_and_close_drains() -> None:
    release, busy = asyncio.Event(), asyncio.Semaphore(0)
    seen: list[str] = []

    class Blocking:
        async def search(self, request: Any, context: Any) -> Any:
            seen.append(context.runtime.worker.worker_id)
            busy.release()
            await release.wait()
            return {"candidates": [], "target": request["target"]}

    worker = create_retrieval_worker(providers=registry(Blocking()), concurrency=1)
    runtime = create_runtime(workers=[worker, worker])
    calls = [asyncio.create_task(runtime.invoke("RETRIEVAL.SEARCH", ask())) for _ in range(2)]
    await busy.acquire()
    await busy.acquire()
    with pytest.raises(NoWorkerAvailable):
        await runtime.invoke("RETRIEVAL.SEARCH", ask())
    closing = asyncio.create_task(runtime.close())
    await asyncio.sleep(0)
    assert not closing.done()
    release.set()
    results = [await call for call in calls]
    await closing
    assert len(set(seen)) == 2
    assert len({result.execution_id for result in results}) == 2


@pytest.mark.parametrize("providers", [None, {}, object(), {"docs": {}}])
def test_r16_without_resolve_construction_raises(providers: Any) -> None:
    with pytest.raises(RetrievalError) as caught:
        create_retrieval(providers=providers)
    assert caught.value.code == "RETRIEVAL_PROVIDER_UNAVAILABLE"


def test_the_worker_has_the_one_node() -> None:
    worker = create_retrieval_worker(providers=registry(Provider()), concurrency=2)
    assert (worker.type, worker.expose, worker.concurrency) == ("RETRIEVAL", ("RETRIEVAL.SEARCH",), 2)
    assert retrieval_search_node.type == "RETRIEVAL.SEARCH"


def test_the_registry_names_its_targets() -> None:
    assert registry(Provider(), text=Provider()).targets == {"docs": ("vector", "text")}
