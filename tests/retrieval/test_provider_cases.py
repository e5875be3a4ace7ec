"""Cases R-28 to R-32: the providers that a search is built from."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.retrieval.fakes import Embedding, Provider, ask, registry

from memplane.errors import RetrievalError
from memplane.retrieval import (
    Branch,
    CosineReranker,
    HybridRetrievalProvider,
    RerankingProvider,
    RetrievalContext,
    RetrievalDefaults,
    TextRetrievalProvider,
    VectorRetrievalProvider,
    create_retrieval,
)
from memplane.retrieval.providers.rerank import cosine

CONTEXT = RetrievalContext()


def request(content: Any = "x", **fields: Any) -> Any:
    return {"query": {"content": content}, "target": {"name": "docs"}, "limit": 10, **fields}


async def code(awaitable: Any) -> str:
    with pytest.raises(RetrievalError) as caught:
        await awaitable
    return caught.value.code


# --- vector


async def test_r28_a_numeric_list_is_used_as_it_is() -> None:
    backend, embedding = Provider(), Embedding({}, dimensions=2)
    vector = VectorRetrievalProvider(backend=backend, embedding=embedding)
    await vector.search(request([1, 0.5]), CONTEXT)
    assert backend.requests[0]["query"] == {"content": [1, 0.5]}
    assert embedding.calls == []
    assert await code(vector.search(request([1.0]), CONTEXT)) == "RETRIEVAL_INVALID_EMBEDDING"
    assert await code(vector.search(request([]), CONTEXT)) == "RETRIEVAL_INVALID_EMBEDDING"


async def test_r28_other_content_is_embedded_once_and_metadata_kept() -> None:
    backend, embedding = Provider(), Embedding({"x": [1.0, 0.0]})
    asked = request()
    asked["query"]["metadata"] = {"lang": "en"}
    await VectorRetrievalProvider(backend=backend, embedding=embedding).search(asked, CONTEXT)
    assert backend.requests[0]["query"] == {"content": [1.0, 0.0], "metadata": {"lang": "en"}}
    assert asked["query"]["content"] == "x"
    assert embedding.calls == [(["x"], "query")]


async def test_r28_neither_embedding_nor_native_is_invalid_input() -> None:
    backend = Provider()
    assert await code(VectorRetrievalProvider(backend=backend).search(request(), CONTEXT)) == "RETRIEVAL_INVALID_INPUT"
    await VectorRetrievalProvider(backend=backend).search(request([1.0]), CONTEXT)
    assert len(backend.requests) == 1


async def test_r28_native_passes_content_on_and_both_raise() -> None:
    backend = Provider()
    native = VectorRetrievalProvider(backend=backend, native=True, dimensions=2)
    await native.search(request(), CONTEXT)
    assert backend.requests[0]["query"] == {"content": "x"}
    assert await code(native.search(request([1.0]), CONTEXT)) == "RETRIEVAL_INVALID_EMBEDDING"
    with pytest.raises(RetrievalError) as caught:
        VectorRetrievalProvider(backend=backend, native=True, embedding=Embedding({}))
    assert caught.value.code == "RETRIEVAL_INVALID_INPUT"


async def test_r28_the_configured_dimensions_hold_when_nobody_says_otherwise() -> None:
    context = RetrievalContext(defaults=RetrievalDefaults(dimensions=3))
    vector = VectorRetrievalProvider(backend=Provider())
    assert await code(vector.search(request([1.0, 2.0]), context)) == "RETRIEVAL_INVALID_EMBEDDING"
    await vector.search(request([1.0, 2.0, 3.0]), context)


# --- text


@pytest.mark.parametrize("content", [None, 1, [1.0], {}, "", "  \n"])
async def test_r29_a_text_search_needs_words(content: Any) -> None:
    backend = Provider()
    text = TextRetrievalProvider(backend=backend)
    assert await code(text.search(request(content), CONTEXT)) == "RETRIEVAL_INVALID_INPUT"
    assert backend.requests == []
    await text.search(request("words"), CONTEXT)
    assert backend.requests == [request("words")]


# --- hybrid


def named(*ids: str, **fields: Any) -> tuple[dict[str, Any], ...]:
    return tuple({"id": id, "content": id, **fields} for id in ids)


async def test_r30_weighted_reciprocal_ranks() -> None:
    one, two = Provider(named("a", "a", "b", score=9)), Provider(named("b", "a", metadata={"m": 1}))
    hybrid = HybridRetrievalProvider(
        branches=[{"provider": one, "weight": 1, "name": "one"}, {"provider": two, "weight": 2}], rrf_k=1
    )
    retrieval = create_retrieval(providers=registry(hybrid, "hybrid"))
    output = (await retrieval.search(ask())).unwrap()
    assert [candidate.get("id") for candidate in output["candidates"]] == ["b", "a"]
    scores = [candidate.get("score") for candidate in output["candidates"]]
    assert scores == pytest.approx([1 / 4 + 2 / 2, 1 / 2 + 2 / 3])
    contributions = output["metadata"]["fusion"]["contributions"]
    assert list(contributions) == ['["docs","b"]', '["docs","a"]']
    assert contributions['["docs","a"]'] == [
        {"branch": "one", "rank": 1, "weight": 1.0, "score": 9},
        {"branch": "1", "rank": 2, "weight": 2.0, "metadata": {"m": 1}},
    ]


async def test_r30_defaults_are_60_and_a_pool_of_100_never_below_the_limit() -> None:
    branch = Provider(named("a"))
    hybrid = HybridRetrievalProvider(branches=[Branch(branch, strategy="text")])
    output = await hybrid.search(request(limit=5, strategy="hybrid"), CONTEXT)
    assert output["candidates"] == [{"id": "a", "content": "a", "score": 1 / 61}]
    await hybrid.search(request(limit=250), CONTEXT)
    assert [(asked["limit"], asked["strategy"]) for asked in branch.requests] == [(100, "text"), (250, "text")]
    configured = RetrievalContext(defaults=RetrievalDefaults(rrf_k=1, candidate_limit=20))
    output = await hybrid.search(request(limit=5), configured)
    assert output["candidates"][0].get("score") == 1 / 2
    assert branch.requests[-1]["limit"] == 20
    own = HybridRetrievalProvider(branches=[Branch(branch)], rrf_k=9, pool=30)
    output = await own.search(request(limit=5, strategy="hybrid"), configured)
    assert output["candidates"][0].get("score") == 1 / 10
    assert branch.requests[-1] == request(limit=30)


async def test_r30_identity_is_target_and_id_or_ref() -> None:
    left = Provider(
        (
            {"content": 1, "source": {"ref": "r"}},
            {"content": 2, "id": "x", "source": {"target": "other", "ref": "r"}},
            {"content": 3, "id": "x"},
        )
    )
    right = Provider(({"content": 4, "id": "r"}, {"content": 5, "id": "x", "source": {"target": "other"}}))
    hybrid = HybridRetrievalProvider(branches=[Branch(left), Branch(right)])
    output = await hybrid.search(request(), CONTEXT)
    assert [candidate["content"] for candidate in output["candidates"]] == [1, 2, 3]
    nameless = HybridRetrievalProvider(branches=[Branch(Provider(({"content": 1},)))])
    assert await code(nameless.search(request(), CONTEXT)) == "RETRIEVAL_INVALID_BACKEND_OUTPUT"
    keyed = HybridRetrievalProvider(branches=[Branch(Provider(({"content": 1},)))], key=lambda c: str(c["content"]))
    output = await keyed.search(request(), CONTEXT)
    assert list(output["metadata"]["fusion"]["contributions"]) == ["1"]


async def test_r30_the_limit_holds_and_branches_are_checked() -> None:
    hybrid = HybridRetrievalProvider(branches=[Branch(Provider(named("a", "b", "c")))])
    assert len((await hybrid.search(request(limit=2), CONTEXT))["candidates"]) == 2
    bad = HybridRetrievalProvider(branches=[Branch(Provider(({"id": "a"},)))])
    assert await code(bad.search(request(), CONTEXT)) == "RETRIEVAL_INVALID_BACKEND_OUTPUT"


@pytest.mark.parametrize(
    "options",
    [
        {"branches": []},
        {"branches": [{"provider": object()}]},
        {"branches": [{"provider": Provider(), "weight": 0}]},
        {"branches": [{"provider": Provider(), "strategy": "rag"}]},
        {"branches": [Branch(Provider())], "rrf_k": 0},
        {"branches": [Branch(Provider())], "pool": 10_001},
    ],
)
def test_r09_bad_hybrids_raise_at_construction(options: Any) -> None:
    with pytest.raises(RetrievalError):
        HybridRetrievalProvider(**options)


async def test_r31_a_failing_branch_fails_after_all_have_settled() -> None:
    events: list[str] = []

    class Failing:
        def search(self, request: Any, context: Any) -> Any:
            events.append("failed")
            raise RetrievalError("RETRIEVAL_TIMEOUT", "first")

    class Slow:
        async def search(self, request: Any, context: Any) -> Any:
            events.append("started")
            for _ in range(5):
                await asyncio.sleep(0)
            events.append("settled")
            raise RuntimeError("second")

    hybrid = HybridRetrievalProvider(branches=[Branch(Failing()), Branch(Slow())])
    assert await code(hybrid.search(request(), CONTEXT)) == "RETRIEVAL_TIMEOUT"
    assert events == ["failed", "started", "settled"]


async def test_r31_cancelling_cancels_every_branch() -> None:
    running = 0
    started = asyncio.Semaphore(0)

    class Hanging:
        async def search(self, request: Any, context: Any) -> Any:
            nonlocal running
            running += 1
            started.release()
            try:
                await asyncio.Event().wait()
            finally:
                running -= 1

    hybrid = HybridRetrievalProvider(branches=[Branch(Hanging()), Branch(Hanging())])
    task = asyncio.create_task(hybrid.search(request(), CONTEXT))
    await started.acquire()
    await started.acquire()
    assert running == 2
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert running == 0


# --- rerank


class Fixed:
    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.calls: list[tuple[Any, int, int]] = []

    async def rerank(self, query: Any, candidates: Any, *, limit: int, context: Any) -> Any:
        self.calls.append((query, len(candidates), limit))
        return self.answer


async def test_r32_the_reranker_chooses_and_scores() -> None:
    backend = Provider(named("a", "b", "c", metadata={"m": 1}))
    reranker = Fixed([{"index": 2, "score": -0.5}, {"index": 0}])
    output = await RerankingProvider(backend=backend, reranker=reranker).search(request(limit=2), CONTEXT)
    assert output["candidates"] == [
        {"id": "c", "content": "c", "metadata": {"m": 1}, "score": -0.5},
        {"id": "a", "content": "a", "metadata": {"m": 1}},
    ]
    assert backend.requests[0]["limit"] == 100
    assert reranker.calls == [({"content": "x"}, 3, 2)]


@pytest.mark.parametrize(
    "answer",
    [
        [{"index": 0}, {"index": 0}],
        [{"index": 0}, {"index": 3}],
        [{"index": 0}, {"index": -1}],
        [{"index": 0}, {"index": True}],
        [{"index": 0}, {}],
        [{"index": 0}],
        [{"index": 0}, {"index": 1}, {"index": 2}],
        [{"index": 0}, {"index": 1, "score": float("nan")}],
        [{"index": 0}, {"index": 1, "score": None}],
        None,
        {},
    ],
)
async def test_r32_malformed_rerankings(answer: Any) -> None:
    provider = RerankingProvider(backend=Provider(named("a", "b", "c")), reranker=Fixed(answer))
    assert await code(provider.search(request(limit=2), CONTEXT)) == "RETRIEVAL_INVALID_BACKEND_OUTPUT"


async def test_r32_without_candidates_the_reranker_is_not_called() -> None:
    reranker = Fixed(None)
    output = await RerankingProvider(backend=Provider(), reranker=reranker).search(request(), CONTEXT)
    assert output["candidates"] == []
    assert reranker.calls == []


async def test_r32_pools() -> None:
    backend = Provider(named("a"))
    reranker = Fixed([{"index": 0}])
    await RerankingProvider(backend=backend, reranker=reranker, pool=7).search(request(limit=3), CONTEXT)
    configured = RetrievalContext(defaults=RetrievalDefaults(rerank_candidate_limit=9))
    await RerankingProvider(backend=backend, reranker=reranker).search(request(limit=3), configured)
    await RerankingProvider(backend=backend, reranker=reranker, pool=7).search(request(limit=30), CONTEXT)
    assert [asked["limit"] for asked in backend.requests] == [7, 9, 30]


async def test_r32_cosine_reranking() -> None:
    embedding = Embedding({"x": [2.0, 0.0], "a": [-1.0, 0.0], "b": [7.0, 0.0], "c": [0.0, 3.0]})
    provider = RerankingProvider(backend=Provider(named("a", "c", "b")), reranker=CosineReranker(embedding=embedding))
    output = await provider.search(request(limit=2), CONTEXT)
    assert [(c.get("id"), c.get("score")) for c in output["candidates"]] == [("b", 1.0), ("c", 0.0)]
    assert embedding.calls == [(["x"], "query"), (["a", "c", "b"], "document")]


async def test_r32_huge_components_stay_finite() -> None:
    embedding = Embedding({"x": [1e308, 1e308], "a": [-1e308, -1e308], "b": [1e308, 1e308], "z": [0.0, 0.0]})
    provider = RerankingProvider(backend=Provider(named("a", "z", "b")), reranker=CosineReranker(embedding=embedding))
    output = await provider.search(request(limit=3), CONTEXT)
    assert [c.get("id") for c in output["candidates"]] == ["b", "z", "a"]
    assert [c.get("score") for c in output["candidates"]] == pytest.approx([1, 0, -1])


@given(st.lists(st.tuples(st.floats(-1e308, 1e308), st.floats(-1e308, 1e308)), min_size=1, max_size=8))
def test_cosine_is_symmetric_and_bounded(pairs: list[tuple[float, float]]) -> None:
    left, right = [a for a, _ in pairs], [b for _, b in pairs]
    value = cosine(left, right)
    assert math.isfinite(value)
    assert -1 <= value <= 1
    assert value == cosine(right, left)
