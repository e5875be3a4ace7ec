"""R-27: embedding in batches."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from memplane.contracts import Purpose
from memplane.errors import RetrievalError
from memplane.retrieval import embed_contents
from memplane.signal import Signal, SignalAborted


class Provider:
    model = "fake"
    revision = "1"

    def __init__(self, answer: Callable[[Sequence[Any]], Any], dimensions: int | None = None) -> None:
        self.answer = answer
        self.dimensions = dimensions
        self.calls: list[tuple[list[Any], str]] = []

    async def embed(self, contents: Sequence[Any], *, purpose: Purpose, signal: Signal | None = None) -> Any:
        self.calls.append((list(contents), purpose))
        return self.answer(contents)


def doubles(contents: Sequence[Any]) -> list[list[float]]:
    return [[float(content), 1.0] for content in contents]


async def test_r27_batches_are_sequential_and_keep_order() -> None:
    provider = Provider(doubles)
    assert await embed_contents(provider, [1, 2, 3], 2) == [[1.0, 1.0], [2.0, 1.0], [3.0, 1.0]]
    assert provider.calls == [([1, 2], "document"), ([3], "document")]


async def test_r27_default_batch_is_64() -> None:
    provider = Provider(doubles)
    await embed_contents(provider, list(range(65)), purpose="query")
    assert [len(contents) for contents, _ in provider.calls] == [64, 1]
    assert provider.calls[0][1] == "query"


async def test_r27_empty_contents_do_not_call_the_provider() -> None:
    provider = Provider(doubles)
    assert await embed_contents(provider, []) == []
    assert provider.calls == []


@pytest.mark.parametrize(
    "answer",
    [
        lambda contents: [],
        lambda contents: [[1.0]] * (len(contents) + 1),
        lambda contents: None,
        lambda contents: "ab",
        lambda contents: {0: [1.0], 1: [1.0]},
        lambda contents: [[] for _ in contents],
        lambda contents: [[1.0, float("nan")] for _ in contents],
        lambda contents: [[float("inf")] for _ in contents],
        lambda contents: [[float("inf"), float("-inf")] for _ in contents],
        lambda contents: [array("d", [float("nan")]) for _ in contents],
        lambda contents: [["1", "2"] for _ in contents],
        lambda contents: [[True, False] for _ in contents],
        lambda contents: [[None] for _ in contents],
        lambda contents: ["ab" for _ in contents],
        lambda contents: [[1.0] * (i + 1) for i, _ in enumerate(contents)],
    ],
)
async def test_r27_a_bad_answer_is_refused(answer: Callable[[Sequence[Any]], Any]) -> None:
    with pytest.raises(RetrievalError) as caught:
        await embed_contents(Provider(answer), [1, 2])
    assert caught.value.code == "RETRIEVAL_INVALID_EMBEDDING"


async def test_r27_dimensions_may_not_change_between_batches() -> None:
    with pytest.raises(RetrievalError) as caught:
        await embed_contents(Provider(lambda contents: [[1.0] * contents[0]]), [2, 3], 1)
    assert caught.value.code == "RETRIEVAL_INVALID_EMBEDDING"


async def test_r27_vectors_must_have_the_dimensions_the_provider_declares() -> None:
    with pytest.raises(RetrievalError) as caught:
        await embed_contents(Provider(doubles, dimensions=3), [1])
    assert caught.value.code == "RETRIEVAL_INVALID_EMBEDDING"


@pytest.mark.parametrize("size", [0, -1, 2049, 1.5, "2", True, None])
async def test_r27_batch_size_has_limits(size: Any) -> None:
    with pytest.raises(RetrievalError) as caught:
        await embed_contents(Provider(doubles), [1], size)
    assert caught.value.code == "RETRIEVAL_INVALID_INPUT"


@pytest.mark.parametrize("contents", [[], [1]])
async def test_r27_an_aborted_signal_raises_even_for_nothing(contents: list[int]) -> None:
    signal = Signal()
    signal.abort()
    provider = Provider(doubles)
    with pytest.raises(SignalAborted):
        await embed_contents(provider, contents, signal=signal)
    assert provider.calls == []


async def test_r27_an_abort_between_batches_stops() -> None:
    signal = Signal()

    def abort(contents: Sequence[Any]) -> list[list[float]]:
        signal.abort()
        return doubles(contents)

    provider = Provider(abort)
    with pytest.raises(SignalAborted):
        await embed_contents(provider, [1, 2], 1, signal=signal)
    assert len(provider.calls) == 1


async def test_huge_finite_components_are_finite() -> None:
    # Their sum overflows; each of them is a number all the same.
    assert await embed_contents(Provider(lambda contents: [[1e308, 1e308, -1e308]]), [1]) == [[1e308, 1e308, -1e308]]
    vectors = await embed_contents(Provider(lambda contents: [array("f", [1, 2])]), [1])
    assert list(vectors[0]) == [1.0, 2.0]


class Slow(Provider):
    """Answers batches in an order of its own; counts how many are in flight."""

    def __init__(self, fail_on: int | None = None) -> None:
        super().__init__(doubles)
        self.fail_on = fail_on
        self.running = self.peak = self.finished = 0

    async def embed(self, contents: Sequence[Any], *, purpose: Purpose, signal: Signal | None = None) -> Any:
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            for _ in range(10 - contents[0]):
                await asyncio.sleep(0)
            if contents[0] == self.fail_on:
                raise RetrievalError("RETRIEVAL_TIMEOUT", "slow")
            self.finished += 1
            return await super().embed(contents, purpose=purpose, signal=signal)
        finally:
            self.running -= 1


async def test_concurrent_batches_are_bounded_and_keep_order() -> None:
    provider = Slow()
    vectors = await embed_contents(provider, list(range(10)), 1, concurrency=3)
    assert vectors == [[float(number), 1.0] for number in range(10)]
    assert provider.peak == 3
    assert [contents for contents, _ in provider.calls] != [[number] for number in range(10)]
    await embed_contents(provider, [1, 2], 1)
    assert provider.running == 0


async def test_a_failing_batch_cancels_those_in_flight() -> None:
    provider = Slow(fail_on=9)
    with pytest.raises(RetrievalError) as caught:
        await embed_contents(provider, [9, *[0] * 50], 1, concurrency=4)
    assert caught.value.code == "RETRIEVAL_TIMEOUT"
    assert (provider.running, provider.finished) == (0, 0)


@pytest.mark.parametrize("concurrency", [0, 65, 1.5, None])
async def test_concurrency_has_limits(concurrency: Any) -> None:
    with pytest.raises(RetrievalError):
        await embed_contents(Provider(doubles), [1], concurrency=concurrency)
