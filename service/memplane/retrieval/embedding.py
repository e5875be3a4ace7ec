"""Turning contents into vectors in batches, with every answer of the provider checked (case R-27).

A provider is foreign code, often a remote service: a missing, short, empty or non-finite vector must never reach an
index, where it would silently spoil searches.
"""

from __future__ import annotations

import asyncio
import math
from array import array
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeGuard

from memplane.contracts import EmbeddingProvider, Purpose
from memplane.retrieval.errors import invalid_embedding, require_integer
from memplane.signal import Signal

DEFAULT_BATCH_SIZE = 64
MAX_BATCH_SIZE = 2048
MAX_CONCURRENCY = 64

REAL_TYPES = frozenset({float, int})


async def embed_contents(
    provider: EmbeddingProvider,
    contents: Sequence[Any],
    batch_size: int = DEFAULT_BATCH_SIZE,
    *,
    purpose: Purpose = "document",
    signal: Signal | None = None,
    concurrency: int = 1,
) -> list[Sequence[float]]:
    """One vector per content, in order. Batches of `batch_size` (1..2048) go to the provider one after another.

    `concurrency` (1..64) lets so many batches be in flight at a time, for a remote provider that would otherwise idle
    between two of them; when one fails the others are cancelled. Order and checks are the same.

    Raises the signal's reason when it is aborted (also with nothing to embed), RETRIEVAL_INVALID_INPUT for a bad batch
    size, RETRIEVAL_INVALID_EMBEDDING when the provider gives another number of vectors than it got contents, or a
    vector that is empty, not finite, or of another length than its neighbours or the provider's `dimensions`.
    """
    size = require_integer("batchSize", batch_size, 1, MAX_BATCH_SIZE)
    if signal is not None:
        signal.raise_if_aborted()
    dimensions: int | None = getattr(provider, "dimensions", None)
    batches = [contents[start : start + size] for start in range(0, len(contents), size)]

    async def embed(batch: Sequence[Any]) -> Sequence[Sequence[float]]:
        nonlocal dimensions
        made = await provider.embed(batch, purpose=purpose, signal=signal)
        if signal is not None:
            signal.raise_if_aborted()
        if not _is_list(made) or len(made) != len(batch):
            raise invalid_embedding(f"The embedding provider must return {len(batch)} vectors")
        for vector in made:
            dimensions = check_vector(vector, dimensions)
        return made

    made = await _in_order(embed, batches, require_integer("concurrency", concurrency, 1, MAX_CONCURRENCY))
    return [vector for batch in made for vector in batch]


async def _in_order(
    embed: Callable[[Sequence[Any]], Awaitable[Sequence[Sequence[float]]]],
    batches: Sequence[Sequence[Any]],
    concurrency: int,
) -> list[Sequence[Sequence[float]]]:
    """The results of all batches in their order, at most `concurrency` of them in flight."""
    if concurrency == 1 or len(batches) < 2:
        return [await embed(batch) for batch in batches]
    results: list[Sequence[Sequence[float]]] = [()] * len(batches)
    waiting = iter(enumerate(batches))

    async def work() -> None:
        for index, batch in waiting:
            results[index] = await embed(batch)

    tasks = [asyncio.create_task(work()) for _ in range(min(concurrency, len(batches)))]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return results


def check_vector(vector: object, dimensions: int | None) -> int:
    """The vector's length. Raises RETRIEVAL_INVALID_EMBEDDING unless it is a nonempty list of finite numbers, as long
    as `dimensions` when that is given."""
    if not _is_list(vector) or len(vector) == 0:
        raise invalid_embedding("An embedding must be a nonempty list of numbers")
    if dimensions is not None and len(vector) != dimensions:
        raise invalid_embedding(f"An embedding has {len(vector)} dimensions instead of {dimensions}")
    if not _all_finite(vector):
        raise invalid_embedding("An embedding must hold finite numbers only")
    return len(vector)


def is_vector(content: object) -> bool:
    """Is this query content a vector given by the caller: a list whose elements are all numbers (the empty one too)?"""
    if isinstance(content, array):
        return content.typecode != "u"
    return isinstance(content, list | tuple) and set(map(type, content)) <= REAL_TYPES


def _is_list(value: object) -> TypeGuard[Sequence[Any]]:
    # Arrays of numerical libraries are no Sequence by class, but have what is needed: a length and items.
    return isinstance(value, list | tuple | array) or (
        hasattr(value, "__len__") and hasattr(value, "__getitem__") and not isinstance(value, str | bytes | dict)
    )


def _all_finite(vector: Any) -> bool:
    if isinstance(vector, list | tuple) and not set(map(type, vector)) <= REAL_TYPES:
        return all(_finite_number(value) for value in vector)
    try:
        # One pass in C: any NaN or infinity makes the sum so; the exact check follows only on overflow.
        return math.isfinite(sum(vector)) or all(map(math.isfinite, vector))
    except (TypeError, OverflowError):
        return False


def _finite_number(value: object) -> bool:
    if isinstance(value, bool | str | bytes) or value is None:
        return False
    try:
        return math.isfinite(value)  # type: ignore[arg-type]  # numbers of numerical libraries answer by __float__
    except (TypeError, OverflowError):
        return False
