"""From the branches' lists to one ranking. Pure.

A branch's list is ordered best first. With one branch its own scores stand; with several, weighted reciprocal rank
fusion makes new ones (case R-30). Equal scores go by id, newest last, so that an answer is the same on every run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

from memplane.contracts import JSON
from memplane.retrieval.fusion import Fused, first_ranks, weighted_rrf


class Found(NamedTuple):
    """A branch's hit. `version`: the one that the branch has compared, None when it saw none or the truth itself."""

    memory_id: int
    score: float
    version: int | None = None


Ranked = Fused[int]
"""A memory's place in the answer: `key` is its id."""


def rank(
    lists: Mapping[str, Sequence[Found]], *, fused: bool, weights: Mapping[str, float], rrf_k: int
) -> list[Ranked]:
    """The memories of all lists, best first, each once."""
    if not fused:
        return [Fused(found.memory_id, found.score) for found in next(iter(lists.values()), ())]
    rankings = [(weights[name], [found.memory_id for found in found_by]) for name, found_by in lists.items()]
    ranked = weighted_rrf(rankings, k=rrf_k)
    # Sorting is stable: by id first, then by score.
    ranked.sort(key=itemgetter(0))
    ranked.sort(key=itemgetter(1), reverse=True)
    return ranked


def without(found: Sequence[Found], gone: set[int]) -> list[Found]:
    """The list without some memories: those behind move up."""
    if not gone:
        return list(found)
    return [one for one in found if one.memory_id not in gone]


def replaced(found: Sequence[Found], fresh: Sequence[Found]) -> list[Found]:
    """The list with the hits of `fresh` instead of those of the same memories; best first, ties by id."""
    ids = {one.memory_id for one in fresh}
    return sorted(
        [*(one for one in found if one.memory_id not in ids), *fresh], key=lambda one: (-one.score, one.memory_id)
    )


class Explanation:
    """Which branches found a memory, at which rank and with which score. `weights` are given where they counted."""

    def __init__(self, lists: Mapping[str, Sequence[Found]], weights: Mapping[str, float] | None) -> None:
        self._branches = {name: (first_ranks([one.memory_id for one in found]), found) for name, found in lists.items()}
        self._weights = weights

    def of(self, memory_id: int) -> dict[str, JSON]:
        """`{"branches": {name: {"rank", "score", "weight"}}}`; the weight only where it counted."""
        branches: dict[str, JSON] = {}
        for name, (ranks, found) in self._branches.items():
            place = ranks.get(memory_id)
            if place is None:
                continue
            entry: dict[str, JSON] = {"rank": place, "score": found[place - 1].score}
            if self._weights is not None:
                entry["weight"] = self._weights[name]
            branches[name] = entry
        return {"branches": branches}
