"""R-28 (the query's vector) and R-30 (weighted reciprocal rank fusion) as pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplane.contracts import Purpose
from memplane.errors import RetrievalError
from memplane.retrieval import query_vector, weighted_rrf
from memplane.retrieval.fusion import check_rrf_k, check_weight, pool_size
from memplane.signal import Signal


class Provider:
    model = "fake"
    revision = "1"
    dimensions = 2

    def __init__(self) -> None:
        self.calls: list[tuple[list[Any], str]] = []

    async def embed(self, contents: Sequence[Any], *, purpose: Purpose, signal: Signal | None = None) -> Any:
        self.calls.append((list(contents), purpose))
        return [[0.5, 0.25] for _ in contents]


async def test_r28_a_list_of_numbers_is_the_vector() -> None:
    provider = Provider()
    assert await query_vector([1, 2.5], embedding=provider) == [1, 2.5]
    assert provider.calls == []


async def test_r28_other_content_is_embedded_once_for_a_query() -> None:
    provider = Provider()
    assert await query_vector({"text": "x"}, embedding=provider) == [0.5, 0.25]
    assert provider.calls == [([{"text": "x"}], "query")]


@pytest.mark.parametrize(("content", "dimensions"), [([], None), ([1.0], 2), ([1.0, float("nan")], 2), ([1e999], None)])
async def test_r28_an_unusable_vector_is_refused(content: list[float], dimensions: int | None) -> None:
    with pytest.raises(RetrievalError) as caught:
        await query_vector(content, embedding=None, dimensions=dimensions)
    assert caught.value.code == "RETRIEVAL_INVALID_EMBEDDING"


async def test_r28_a_vector_of_another_length_than_the_providers_is_refused() -> None:
    with pytest.raises(RetrievalError) as caught:
        await query_vector([1.0, 2.0, 3.0], embedding=Provider())
    assert caught.value.code == "RETRIEVAL_INVALID_EMBEDDING"


async def test_r28_text_without_a_provider_is_invalid_input() -> None:
    with pytest.raises(RetrievalError) as caught:
        await query_vector("text", embedding=None)
    assert caught.value.code == "RETRIEVAL_INVALID_INPUT"


def test_r30_scores_are_sums_of_weight_over_k_plus_rank() -> None:
    fused = weighted_rrf([(1, ["a", "a", "b"]), (2, ["b", "a"])], k=1)
    assert [entry.key for entry in fused] == ["b", "a"]
    assert dict(fused) == pytest.approx({"b": 1 / 4 + 2 / 2, "a": 1 / 2 + 2 / 3})


def test_r30_default_k_is_60() -> None:
    assert weighted_rrf([(1, ["a"])]) == [("a", 1 / 61)]


def test_r30_equal_scores_keep_first_appearance() -> None:
    assert [key for key, _ in weighted_rrf([(1, ["x"]), (1, ["a"]), (1, ["m"])])] == ["x", "a", "m"]


def test_r30_pool_is_never_below_the_limit() -> None:
    assert pool_size(10) == 100
    assert pool_size(250) == 250
    assert pool_size(3, pool=5) == 5


@pytest.mark.parametrize("value", [0, -1, 1.5, 10_001, "60", None, True])
def test_r09_rrf_k_has_limits(value: Any) -> None:
    with pytest.raises(RetrievalError) as caught:
        check_rrf_k(value)
    assert caught.value.code == "RETRIEVAL_INVALID_INPUT"


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "1", None, True])
def test_branch_weights_are_positive_and_finite(value: Any) -> None:
    with pytest.raises(RetrievalError):
        check_weight(value)


@given(st.lists(st.tuples(st.floats(0.01, 10), st.lists(st.integers(0, 20))), max_size=5), st.integers(1, 100))
def test_fusion_has_every_key_once_and_descends(rankings: list[tuple[float, list[int]]], k: int) -> None:
    fused = weighted_rrf(rankings, k=k)
    assert sorted(entry.key for entry in fused) == sorted({key for _, keys in rankings for key in keys})
    scores = [entry.score for entry in fused]
    assert scores == sorted(scores, reverse=True)
    assert all(0 < score <= sum(weight for weight, _ in rankings) for score in scores)
