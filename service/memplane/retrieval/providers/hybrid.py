"""`HybridRetrievalProvider`: several searches at once, fused by weighted reciprocal ranks (cases R-30, R-31)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from memplane.contracts import MAX_LIMIT
from memplane.retrieval.documents import (
    Candidate,
    RetrievalContext,
    RetrievalOutput,
    RetrievalProvider,
    RetrievalRequest,
)
from memplane.retrieval.errors import invalid_input, invalid_output, require_integer
from memplane.retrieval.fusion import check_rrf_k, check_weight, first_ranks, pool_size, weighted_rrf
from memplane.retrieval.outputs import check_output
from memplane.retrieval.requests import check_strategy

Identity = Callable[[Candidate], str]


@dataclass(frozen=True, slots=True)
class Branch:
    """One search of a hybrid. weight: how much its ranks count. strategy: what the provider is told to use.

    name: stands in the contributions; by default the strategy, else the branch's number from 0.
    """

    provider: RetrievalProvider
    weight: float = 1.0
    strategy: str | None = None
    name: str | None = None


class HybridRetrievalProvider:
    """Asks all branches at the same time and fuses their rankings.

    rrf_k and pool: None takes the call's defaults (`hybrid.rrfK`, `hybrid.candidateLimit`: 60 and 100 when nobody says
    otherwise). Each branch is asked for the pool, or the limit when that is larger. key: what makes candidates the
    same, instead of [source.target or target.name, id or source.ref].

    A candidate keeps the content of the first branch that has it. `metadata.fusion.contributions` of the output tells
    by identity what each branch gave: branch, rank, weight, and the branch's own score and metadata.
    """

    def __init__(
        self,
        *,
        branches: Sequence[Branch | Mapping[str, Any]],
        rrf_k: int | None = None,
        pool: int | None = None,
        key: Identity | None = None,
    ) -> None:
        self._branches = [_branch(branch, number) for number, branch in enumerate(branches)]
        if not self._branches:
            raise invalid_input("A hybrid search needs at least one branch")
        self._rrf_k = None if rrf_k is None else check_rrf_k(rrf_k)
        self._pool = None if pool is None else require_integer("pool", pool, 1, MAX_LIMIT)
        self._key = key

    async def search(self, request: RetrievalRequest, context: RetrievalContext) -> RetrievalOutput:
        """The first failing branch's error, once every branch has settled; else the fused candidates."""
        pool = context.defaults.candidate_limit if self._pool is None else self._pool
        k = context.defaults.rrf_k if self._rrf_k is None else self._rrf_k
        requests = [_branch_request(request, branch, pool_size(request["limit"], pool)) for branch in self._branches]
        outputs = await _settled(
            [_search(branch, asked, context) for branch, asked in zip(self._branches, requests, strict=True)]
        )
        found = [check_output(asked, output)["candidates"] for asked, output in zip(requests, outputs, strict=True)]
        identities = [[self._identity(request, candidate) for candidate in candidates] for candidates in found]
        weights = [branch.weight for branch in self._branches]
        fused = weighted_rrf(zip(weights, identities, strict=True), k=k)[: request["limit"]]
        contributions = self._contributions(found, identities)
        firsts = _firsts(found, identities)
        return {
            "candidates": [_scored(firsts[identity], score) for identity, score in fused],
            "target": request["target"],
            "metadata": {"fusion": {"contributions": {identity: contributions[identity] for identity, _ in fused}}},
        }

    def _identity(self, request: RetrievalRequest, candidate: Candidate) -> str:
        if self._key is not None:
            return self._key(candidate)
        source = candidate.get("source", {})
        name = candidate["id"] if "id" in candidate else source.get("ref")
        if name is None:
            raise invalid_output("Candidates of a hybrid search need an id, a source.ref, or a key function")
        pair = [source.get("target", request["target"]["name"]), name]
        return json.dumps(pair, ensure_ascii=False, separators=(",", ":"))

    def _contributions(
        self, found: Sequence[Sequence[Candidate]], identities: Sequence[Sequence[str]]
    ) -> dict[str, list[dict[str, Any]]]:
        gathered: dict[str, list[dict[str, Any]]] = {}
        for branch, candidates, keys in zip(self._branches, found, identities, strict=True):
            for identity, rank in first_ranks(keys).items():
                candidate = candidates[rank - 1]
                entry: dict[str, Any] = {"branch": branch.name, "rank": rank, "weight": branch.weight}
                if "score" in candidate:
                    entry["score"] = candidate["score"]
                if "metadata" in candidate:
                    entry["metadata"] = candidate["metadata"]
                gathered.setdefault(identity, []).append(entry)
        return gathered


def _branch(value: Branch | Mapping[str, Any], number: int) -> Branch:
    if not isinstance(value, Branch):
        value = Branch(**value)
    if not callable(getattr(value.provider, "search", None)):
        raise invalid_input("The provider of a branch must have a search method")
    strategy = None if value.strategy is None else check_strategy(value.strategy)
    return Branch(value.provider, check_weight(value.weight), strategy, value.name or strategy or str(number))


def _branch_request(request: RetrievalRequest, branch: Branch, limit: int) -> RetrievalRequest:
    # The hybrid's own strategy is no strategy of its branches.
    asked = request.copy()
    asked["limit"] = min(limit, MAX_LIMIT)
    asked.pop("strategy", None)
    if branch.strategy is not None:
        asked["strategy"] = branch.strategy
    return asked


async def _search(branch: Branch, request: RetrievalRequest, context: RetrievalContext) -> RetrievalOutput:
    # A coroutine of our own: a provider that raises before it returns one counts as a failing branch like any other.
    return await branch.provider.search(request, context)


async def _settled(searches: Sequence[Any]) -> list[Any]:
    """All results, or the first branch's error, but never while another branch still runs."""
    results = await asyncio.gather(*searches, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def _firsts(found: Sequence[Sequence[Candidate]], identities: Sequence[Sequence[str]]) -> dict[str, Candidate]:
    firsts: dict[str, Candidate] = {}
    for candidates, keys in zip(found, identities, strict=True):
        for candidate, identity in zip(candidates, keys, strict=True):
            firsts.setdefault(identity, candidate)
    return firsts


def _scored(candidate: Candidate, score: float) -> Candidate:
    return cast(Candidate, {**candidate, "score": score})
