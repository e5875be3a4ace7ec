"""Cases R-17 to R-26: the bridges between MEMORY and RETRIEVAL."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.nodes.fakes import CrudStore, Searcher
from tests.retrieval.fakes import Provider, registry

from memplane.contracts import CallOptions, NodeError, NodeResult, Scope
from memplane.errors import RetrievalError
from memplane.nodes import create_memory, create_memory_worker
from memplane.plugins.inmemory import InMemoryBackend
from memplane.retrieval import (
    RemoteRetrievalSearchProvider,
    RetrievalContext,
    RetrievalTargetRegistry,
    create_memory_retrieval_provider,
    create_retrieval,
    create_retrieval_memory_search_provider,
    create_retrieval_worker,
    map_memory_candidates,
)
from memplane.runtime import create_runtime
from memplane.signal import Signal

MEMORY = {"id": "m1", "key": "k", "content": {"text": "x"}, "metadata": {"a": 1}, "version": 3}
TARGET = {"name": "docs"}


def candidate(**fields: Any) -> dict[str, Any]:
    return {"content": MEMORY, **fields}


class Runtime:
    """Records invocations; answers with a result, or raises."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.calls: list[tuple[str, Any, Signal | None]] = []

    async def invoke(self, node: str, input: Any, *, signal: Signal | None = None) -> Any:
        self.calls.append((node, input, signal))
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


def success(*candidates: Any) -> NodeResult[Any]:
    return NodeResult("e", "RETRIEVAL.SEARCH", "success", {"candidates": list(candidates), "target": TARGET})


FAILURE: NodeResult[Any] = NodeResult("e", "RETRIEVAL.SEARCH", "failed", None, NodeError("X", "password=secret"))


async def test_r17_a_memory_search_becomes_a_retrieval_request() -> None:
    runtime = Runtime(success())
    remote = RemoteRetrievalSearchProvider(target=TARGET, runtime=runtime)
    full = {"query": "q", "strategy": "s", "filter": {"a": 1}, "limit": 4, "options": {"o": 1}}
    memory = create_memory(store=CrudStore(), search=remote)
    assert (await memory.search(full)).output == []
    assert (await memory.search({"query": None})).output == []
    await remote.search({"query": "bare"}, CallOptions())  # type: ignore[typeddict-item]
    assert [input for _, input, _ in runtime.calls] == [
        {
            "query": {"content": "q"},
            "target": TARGET,
            "strategy": "s",
            "filter": {"a": 1},
            "limit": 4,
            "options": {"o": 1},
        },
        {"query": {"content": None}, "target": TARGET, "limit": 10},
        {"query": {"content": "bare"}, "target": TARGET},
    ]
    assert {node for node, _, _ in runtime.calls} == {"RETRIEVAL.SEARCH"}


async def test_r18_the_mapper_gets_the_whole_output_and_may_be_asynchronous() -> None:
    seen: list[Any] = []

    async def map_output(output: Any) -> Any:
        seen.append(output)
        return [{"memory": MEMORY}]

    remote = RemoteRetrievalSearchProvider(target=TARGET, runtime=Runtime(success(1)), map_output=map_output)
    assert (await create_memory(store=CrudStore(), search=remote).search({"query": 1})).output == [{"memory": MEMORY}]
    assert seen == [{"candidates": [1], "target": TARGET}]
    failing = RemoteRetrievalSearchProvider(target=TARGET, runtime=Runtime(FAILURE), map_output=map_output)
    result = await create_memory(store=CrudStore(), search=failing).search({"query": 1})
    assert result.error is not None
    assert (result.status, result.error.code) == ("failed", "MEMORY_BACKEND_ERROR")
    assert "secret" not in json.dumps(result.as_wire())
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("runtime", "message"),
    [
        (Runtime(RuntimeError("secret")), "Remote retrieval invocation failed"),
        (Runtime(FAILURE), "Remote retrieval operation failed"),
        (Runtime(None), "Remote retrieval operation failed"),
        (Runtime({"status": "success"}), "Remote retrieval operation failed"),
        (None, "Remote retrieval invocation failed"),
    ],
)
async def test_r19_failures_have_fixed_messages(runtime: Any, message: str) -> None:
    remote = RemoteRetrievalSearchProvider(target=TARGET, runtime=runtime)
    with pytest.raises(RetrievalError) as caught:
        await remote.search({"query": 1, "limit": 1}, CallOptions())
    assert (caught.value.code, caught.value.message) == ("RETRIEVAL_BACKEND_ERROR", message)
    assert caught.value.__cause__ is None


async def test_r19_a_wire_object_is_a_result_too() -> None:
    remote = RemoteRetrievalSearchProvider(target=TARGET, runtime=Runtime(success(candidate()).as_wire()))
    assert list(await remote.search({"query": 1, "limit": 1}, CallOptions())) == [{"memory": MEMORY, "metadata": {}}]


async def test_r20_an_explicit_runtime_beats_the_calls_and_the_signal_is_forwarded() -> None:
    explicit, of_call, signal = Runtime(success()), Runtime(success()), Signal()
    options = CallOptions(signal=signal, runtime=of_call)
    search: Any = {"query": 1, "limit": 1}
    await RemoteRetrievalSearchProvider(target=TARGET, runtime=explicit).search(search, options)
    assert (len(explicit.calls), len(of_call.calls)) == (1, 0)
    assert explicit.calls[0][2] is signal
    await RemoteRetrievalSearchProvider(target=TARGET).search(search, options)
    assert (len(explicit.calls), len(of_call.calls)) == (1, 1)


async def test_r20_inside_a_worker_the_invocations_runtime_is_used() -> None:
    provider = Provider((candidate(score=0.5),))
    memory = create_memory_worker(store=CrudStore(), search=RemoteRetrievalSearchProvider(target=TARGET))
    runtime = create_runtime(workers=[memory, create_retrieval_worker(providers=registry(provider))])
    signal = Signal()
    result = await runtime.invoke("MEMORY.SEARCH", {"query": "q"}, signal=signal)
    assert result.unwrap() == [{"memory": MEMORY, "score": 0.5, "metadata": {}}]
    assert provider.requests[0]["query"] == {"content": "q"}
    assert provider.contexts[0].signal is not None
    await runtime.close()


async def test_r21_the_target_is_checked_and_copied() -> None:
    for bad in ({}, {"name": " "}, None):
        with pytest.raises(RetrievalError) as caught:
            RemoteRetrievalSearchProvider(target=bad)  # type: ignore[arg-type]
        assert caught.value.code == "RETRIEVAL_INVALID_INPUT"
    runtime = Runtime(success())
    target: dict[str, Any] = {"name": "docs", "metadata": {"a": [1]}}
    remote = RemoteRetrievalSearchProvider(target=target, runtime=runtime)
    target["name"] = "other"
    target["metadata"]["a"].append(2)
    search: Any = {"query": 1, "limit": 1}
    await remote.search(search, CallOptions())
    runtime.calls[0][1]["target"]["name"] = "changed by the callee"
    await remote.search(search, CallOptions())
    assert runtime.calls[1][1]["target"] == {"name": "docs", "metadata": {"a": [1]}}


def test_r22_candidates_with_whole_memories_become_hits() -> None:
    output: Any = {
        "candidates": [
            candidate(),
            candidate(id="m1", score=-2, metadata={"x": 1}, source={"target": "docs", "ref": "m1"}),
            candidate(content={"id": "m2", "content": None}),
        ],
        "target": TARGET,
    }
    assert map_memory_candidates(output) == [
        {"memory": MEMORY, "metadata": {}},
        {"memory": MEMORY, "score": -2, "metadata": {"x": 1, "source": {"target": "docs", "ref": "m1"}}},
        {"memory": {"id": "m2", "content": None}, "metadata": {}},
    ]
    assert output["candidates"][1]["metadata"] == {"x": 1}


@pytest.mark.parametrize(
    "bad",
    [
        {"content": "text"},
        {"content": None},
        {"content": {"id": "m1"}},
        {"content": {"id": " ", "content": 1}},
        {"content": {"content": 1}},
        {"content": {"id": "m1", "content": 1, "key": ""}},
        {"content": {"id": "m1", "content": 1, "key": None}},
        {"content": {"id": "m1", "content": 1, "metadata": []}},
        {"content": MEMORY, "id": "other"},
    ],
)
def test_r22_anything_else_is_an_invalid_output(bad: Any) -> None:
    with pytest.raises(RetrievalError) as caught:
        map_memory_candidates({"candidates": [bad], "target": {"name": "docs"}})
    assert caught.value.code == "RETRIEVAL_INVALID_BACKEND_OUTPUT"
    assert caught.value.message == "Memory candidates must contain complete MemoryItems"


async def test_r23_a_memory_search_serves_a_target() -> None:
    hits = [{"memory": MEMORY, "score": 0.5, "metadata": {"h": 1}}, {"memory": {"id": "m2", "content": 1}}]
    search = Searcher(search=hits)
    provider = create_memory_retrieval_provider(search)
    retrieval = create_retrieval(providers=registry(provider))
    signal = Signal()
    fields = {"strategy": "vector", "filter": {"a": 1}, "limit": 5, "options": {"o": 1}}
    result = await retrieval.search({"query": {"content": "q"}, "target": TARGET, **fields}, signal=signal)
    assert search.inputs("search") == [{"query": "q", **fields}]
    assert search.calls[0][2].signal is signal
    assert result.unwrap()["candidates"] == [
        {
            "id": "m1",
            "content": MEMORY,
            "source": {"target": "docs", "ref": "m1"},
            "score": 0.5,
            "metadata": {"h": 1},
        },
        {"id": "m2", "content": {"id": "m2", "content": 1}, "source": {"target": "docs", "ref": "m2"}},
    ]


@pytest.mark.parametrize("output", [None, {}, [None], [{}], [{"memory": {"id": "1"}}]])
async def test_r23_a_malformed_memory_search_is_an_invalid_output(output: Any) -> None:
    provider = create_memory_retrieval_provider(Searcher(search=output))
    result = await create_retrieval(providers=registry(provider)).search({"query": {"content": 1}, "target": TARGET})
    assert result.error is not None
    assert result.error.code == "RETRIEVAL_INVALID_BACKEND_OUTPUT"


async def test_r24_a_namespace_needs_a_mapper() -> None:
    search = Searcher(search=[])
    request: Any = {"query": {"content": 1}, "target": {"name": "docs", "namespace": "n"}}
    plain = create_retrieval(providers=registry(create_memory_retrieval_provider(search)))
    result = await plain.search(request)
    assert result.error is not None
    assert result.error.code == "RETRIEVAL_INVALID_INPUT"
    assert result.error.message == "Memory namespace requires an explicit input mapper"
    assert search.calls == []

    async def map_input(request: Any) -> Any:
        return {"query": request["query"]["content"], "limit": 1, "filter": {"ns": request["target"]["namespace"]}}

    mapped = create_retrieval(providers=registry(create_memory_retrieval_provider(search, map_input)))
    assert (await mapped.search(request)).status == "success"
    assert search.inputs("search") == [{"query": 1, "limit": 1, "filter": {"ns": "n"}}]


async def test_r25_a_local_pipeline_and_a_remote_delegation_give_the_same_hits() -> None:
    backend = InMemoryBackend()
    store = backend.scoped(Scope("t", "u"))
    await create_memory(store=store).write(
        {"memories": [{"key": f"k{n}", "content": f"otter {n}", "metadata": {"n": n}} for n in range(4)]}
    )
    provider = create_memory_retrieval_provider(store)
    targets = RetrievalTargetRegistry({"docs": {"defaultStrategy": "keyword", "providers": {"keyword": provider}}})
    local = create_memory_worker(
        store=store, search=create_retrieval_memory_search_provider(provider=provider, target=TARGET)
    )
    remote = create_memory_worker(store=store, search=RemoteRetrievalSearchProvider(target=TARGET))
    answers = []
    for workers in ([local], [remote, create_retrieval_worker(providers=targets)]):
        runtime = create_runtime(workers=workers)
        assert len(runtime.workers()) == len(workers)
        result = await runtime.invoke("MEMORY.SEARCH", {"query": "otter", "limit": 3})
        answers.append(result.unwrap())
        await runtime.close()
    assert answers[0] == answers[1]
    assert len(answers[0]) == 3
    assert answers[0][0]["memory"]["key"] == "k0"
    assert answers[0][0]["memory"]["metadata"] == {"n": 0}
    assert answers[0][0]["metadata"]["source"] == {"target": "docs", "ref": answers[0][0]["memory"]["id"]}


async def test_r26_limit_strategy_target_and_defaults_of_the_local_pipeline() -> None:
    provider = Provider()
    target: dict[str, Any] = {"name": "docs", "metadata": {"a": 1}}
    defaults: dict[str, Any] = {"searchLimit": 4, "hybrid": {"rrfK": 7}}
    search = create_retrieval_memory_search_provider(
        provider=provider, target=target, defaults=defaults, strategy="vector"
    )
    target["metadata"]["a"] = 2
    defaults["hybrid"]["rrfK"] = 9
    defaults["searchLimit"] = 9
    await search.search({"query": 1}, CallOptions())  # type: ignore[typeddict-item]
    await search.search({"query": 1, "limit": 2, "strategy": "text"}, CallOptions())
    assert [(request["limit"], request["strategy"]) for request in provider.requests] == [(4, "vector"), (2, "text")]
    assert provider.requests[0]["target"] == {"name": "docs", "metadata": {"a": 1}}
    assert isinstance(provider.contexts[0], RetrievalContext)
    assert provider.contexts[0].defaults.rrf_k == 7
    plain = create_retrieval_memory_search_provider(provider=provider, target=TARGET)
    await plain.search({"query": 1}, CallOptions())  # type: ignore[typeddict-item]
    assert provider.requests[-1] == {"query": {"content": 1}, "target": TARGET, "limit": 10}


@pytest.mark.parametrize(
    "options",
    [
        {"target": {"name": " "}},
        {"target": TARGET, "defaults": {"searchLimit": 0}},
        {"target": TARGET, "strategy": " "},
        {"target": TARGET, "strategy": "rag"},
    ],
)
def test_r26_bad_options_raise_at_construction(options: Any) -> None:
    with pytest.raises(RetrievalError):
        create_retrieval_memory_search_provider(provider=Provider(), **options)


async def test_the_local_pipeline_checks_like_the_worker() -> None:
    bad = Provider({"candidates": [{"content": 1, "score": float("nan")}], "target": TARGET})
    memory = create_memory(
        store=CrudStore(), search=create_retrieval_memory_search_provider(provider=bad, target=TARGET)
    )
    result = await memory.search({"query": 1})
    assert result.error is not None
    assert result.error.code == "MEMORY_BACKEND_ERROR"
