"""Weighted reciprocal rank fusion (case R-30): several rankings become one, by ranks alone.

Scores of different branches (cosine, BM25, hops) cannot be compared; ranks can. An item's fused score is the sum over
branches of weight / (k + rank), rank from 1. Within a branch an item counts once, at its first rank.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from operator import itemgetter
from typing import Generic, NamedTuple, TypeVar

from memplane.retrieval.errors import invalid_input, require_integer

Key = TypeVar("Key", bound=Hashable)

DEFAULT_RRF_K = 60
MAX_RRF_K = 10_000
DEFAULT_POOL = 100
"""How many items each branch is asked for, at least; never below the caller's limit."""


class Fused(NamedTuple, Generic[Key]):
    key: Key
    score: float


def weighted_rrf(rankings: Iterable[tuple[float, Iterable[Key]]], *, k: int = DEFAULT_RRF_K) -> list[Fused[Key]]:
    """Fuse rankings, each a weight and its keys from best to worst; best first.

    Equal scores keep the order of first appearance (branch by branch), so that the result is the same on every run.
    """
    scores: dict[Key, float] = {}
    for weight, keys in rankings:
        # A repeated key counts at its first rank only, yet it does use up the later ones.
        seen: set[Key] = set()
        for rank, key in enumerate(keys, start=1):
            if key in seen:
                continue
            seen.add(key)
            scores[key] = scores.get(key, 0.0) + weight / (k + rank)
    # `reverse` keeps the order of equal ones, too.
    return [Fused._make(entry) for entry in sorted(scores.items(), key=itemgetter(1), reverse=True)]


def check_rrf_k(value: object) -> int:
    """A usable k: an integer of 1..10000, else RETRIEVAL_INVALID_INPUT."""
    return require_integer("rrfK", value, 1, MAX_RRF_K)


def check_weight(value: object) -> float:
    """A usable branch weight: a finite number above 0, else RETRIEVAL_INVALID_INPUT."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise invalid_input("A branch weight must be a finite number above 0")
    return float(value)


def pool_size(limit: int, pool: int = DEFAULT_POOL) -> int:
    """How many items to ask of each branch for `limit` fused ones."""
    return max(limit, pool)


def first_ranks(keys: Sequence[Key]) -> dict[Key, int]:
    """Each key's first rank, from 1."""
    ranks: dict[Key, int] = {}
    for rank, key in enumerate(keys, start=1):
        ranks.setdefault(key, rank)
    return ranks
