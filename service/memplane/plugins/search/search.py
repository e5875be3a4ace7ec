"""One search: ask the branches, rank, let PostgreSQL check, fill up again.

Branches run beside each other, the graph after those that give it seeds. A failing branch fails the search only after
all that were started have settled (case R-31), and only when it was asked for by name; the default search goes on
without it and says so. Whatever the projections hold, an answer has live memories of the scope that match the filter,
in the version that PostgreSQL has, and never more than `limit`. Source: design section 8.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import asyncpg

from memplane.contracts import MemoryItem, Scope, SearchHit
from memplane.errors import PluginError, TargetUnavailable
from memplane.plugins.postgres.keyword import KeywordSearch
from memplane.plugins.search.branches import BranchFailed, Guard
from memplane.plugins.search.graph import GraphSearch
from memplane.plugins.search.hydrate import Hydration
from memplane.plugins.search.ranking import Explanation, Found, Ranked, rank, replaced, without
from memplane.plugins.search.request import HYBRID, Request
from memplane.plugins.search.vector import GenerationChanged, VectorQuery, VectorSearch
from memplane.retrieval.degradation import report_degraded
from memplane.schema.canonical import invalid
from memplane.schema.database import CONNECT_ERRORS
from memplane.signal import Signal

REFILLS: Final = 3
"""How often a list is filled up again after hits had to go."""

SLACK: Final = 4
"""Memories that are read beyond the limit, so that a few that have to go cost no further round."""

GROWTH: Final = 4
"""A refill asks the branches for this many times as many memories as the round before."""


SWITCHES: Final = 3
"""How often a search begins anew because a rebuild has switched generations meanwhile."""

AWAY: Final[tuple[type[BaseException], ...]] = (TargetUnavailable, asyncpg.QueryCanceledError, *CONNECT_ERRORS)
"""PostgreSQL does not answer, or not in time."""


@dataclass(frozen=True, slots=True)
class Branches:
    """What a search works with. `names` are the branches that take part."""

    names: tuple[str, ...]
    keyword: KeywordSearch
    hydration: Hydration
    guards: Mapping[str, Guard]
    vector: VectorSearch | None = None
    graph: GraphSearch | None = None


class Search:
    """One call's state."""

    def __init__(self, branches: Branches, scope: Scope, request: Request, signal: Signal | None) -> None:
        self._branches = branches
        self._scope = scope
        self._request = request
        self._signal = signal
        self._fused = request.strategy == HYBRID
        self._lists: dict[str, list[Found]] = {}
        self._items: dict[int, MemoryItem] = {}
        self._gone: set[int] = set()
        self._ranking: list[Ranked] | None = None
        self._query: VectorQuery | None = None

    async def run(self) -> list[SearchHit]:
        """The hits, best first. Raises `PluginError`."""
        try:
            ranked = await self._rounds()
        except AWAY:
            # Branches have sorted their own failures; what comes here is the truth itself being away.
            raise PluginError("SEARCH_UNAVAILABLE", "The search is unavailable: postgresql") from None
        explanation = Explanation(self._ranking_lists(), self._request.weights if self._fused else None)
        return [
            SearchHit(memory=self._items[one.key], score=one.score, metadata=explanation.of(one.key)) for one in ranked
        ]

    async def _rounds(self) -> list[Ranked]:
        limit = self._request.limit
        asked = max(limit, self._request.pool) if self._fused else limit + SLACK
        full = await self._ask(asked)
        ranked: list[Ranked] = []
        for attempt in range(REFILLS + 1):
            await self._read((limit + SLACK) << attempt)
            ranked = self._ranked()
            unread = [one for one in ranked[:limit] if one.key not in self._items]
            if not unread and (len(ranked) >= limit or not full):
                break
            if len(ranked) < limit and full and attempt < REFILLS:
                asked *= GROWTH
                full = await self._ask(asked)
        return [one for one in ranked if one.key in self._items][:limit]

    def _ranking_lists(self) -> dict[str, list[Found]]:
        """The lists that count, without what has gone."""
        names = [name for name in self._lists if self._fused or name == self._request.strategy]
        return {name: without(self._lists[name], self._gone) for name in names}

    def _ranked(self) -> list[Ranked]:
        """The ranking, made anew only when a list or what has gone has changed."""
        if self._ranking is None:
            request = self._request
            self._ranking = rank(self._ranking_lists(), fused=self._fused, weights=request.weights, rrf_k=request.rrf_k)
        return self._ranking

    async def _read(self, window: int) -> None:
        """Let PostgreSQL check the first `window` memories of the ranking."""
        missing = [one.key for one in self._ranked()[:window] if one.key not in self._items]
        found = await self._branches.hydration.read(self._scope, missing, self._request.filter)
        self._items.update(found)
        if len(found) < len(missing):
            self._gone.update(set(missing) - found.keys())
            self._ranking = None
        await self._correct_stale()

    async def _correct_stale(self) -> None:
        """Hits whose vector belongs to another version are compared again, as their memories are now."""
        stale = [
            one.memory_id
            for one in self._lists.get("vector", ())
            if one.version is not None
            and one.memory_id in self._items
            and one.version != self._items[one.memory_id]["version"]
        ]
        if not stale or self._query is None or self._branches.vector is None:
            return
        vector, query = self._branches.vector, self._query
        known = without(self._lists["vector"], set(stale))
        try:
            current = await self._branches.guards["vector"].run(lambda: vector.current(query, stale))
        except BranchFailed as failure:
            # Better without them than ranked by what they said once.
            report_degraded(failure.target)
            current = []
        self._lists["vector"] = replaced(known, current)
        self._ranking = None

    async def _ask(self, asked: int) -> bool:
        """Ask every branch that takes part for `asked` memories. True when one may have more."""
        names = self._direct()
        failures = self._take(await self._outcomes(names, asked))
        if names and len(failures) == len(names):
            raise failures[0].unavailable()
        if self._request.strategy == "graph" or (self._fused and "graph" in self._branches.names):
            # Relatives seldom make it to the top: what stands there is read meanwhile.
            outcome, read = await asyncio.gather(
                self._branches.guards["graph"].run(lambda: self._relatives(asked)),
                self._read(self._request.limit + SLACK),
                return_exceptions=True,
            )
            if isinstance(read, BaseException):
                raise read
            self._take({"graph": outcome})
        return any(len(found) >= asked for found in self._lists.values())

    async def _outcomes(self, names: Sequence[str], asked: int) -> dict[str, list[Found] | BaseException]:
        """What each branch gives or raises, all of them settled."""
        if len(names) == 1:
            # In this task: a second one would only cost turns of the loop.
            try:
                return {names[0]: await self._branches.guards[names[0]].run(self._work(names[0], asked))}
            except BranchFailed as failure:
                return {names[0]: failure}
        outcomes = await asyncio.gather(
            *(self._branches.guards[name].run(self._work(name, asked)) for name in names), return_exceptions=True
        )
        return dict(zip(names, outcomes, strict=True))

    def _take(self, outcomes: Mapping[str, list[Found] | BaseException]) -> list[BranchFailed]:
        """Keep the lists; report what failed, or raise it when it was asked for by name or is no branch's failure."""
        failures: list[BranchFailed] = []
        for name, outcome in outcomes.items():
            if isinstance(outcome, list):
                self._lists[name] = outcome
                self._ranking = None
            elif not isinstance(outcome, BranchFailed):
                raise outcome
            else:
                failures.append(outcome)
        for failure in failures:
            if failure.branch == self._request.strategy:
                raise failure.unavailable()
            report_degraded(failure.target)
        return failures

    def _direct(self) -> list[str]:
        """The branches that answer the question itself. Raises INVALID_INPUT when it gives them nothing to look for."""
        request = self._request
        if request.strategy in ("vector", "keyword"):
            names = [request.strategy]
        elif request.strategy == "graph" and request.graph.seeds is not None:
            return []
        else:
            names = [name for name in ("vector", "keyword") if name in self._branches.names]
        able = [name for name in names if self._answers(name)]
        if not able:
            lacking = "query.text" if "keyword" in names else "query.vector"
            invalid(f"{lacking} is required by the strategy {request.strategy} of this service")
        return able

    def _answers(self, name: str) -> bool:
        if name == "keyword":
            return self._request.text is not None
        vector = self._branches.vector
        return self._request.vector is not None or (vector is not None and vector.embeds)

    def _work(self, name: str, asked: int) -> Callable[[], Awaitable[list[Found]]]:
        return (lambda: self._by_vector(asked)) if name == "vector" else (lambda: self._by_keyword(asked))

    async def _by_keyword(self, asked: int) -> list[Found]:
        request = self._request
        hits = await self._branches.keyword.search(self._scope, request.text or "", limit=asked, filter=request.filter)
        return [Found(*hit) for hit in hits]

    async def _by_vector(self, asked: int) -> list[Found]:
        request, vector = self._request, self._branches.vector
        assert vector is not None
        for _ in range(SWITCHES):
            if self._query is None:
                self._query = await vector.prepare(
                    self._scope, text=request.text, vector=request.vector, filter=request.filter, signal=self._signal
                )
            try:
                return await vector.search(self._query, limit=asked)
            except GenerationChanged:
                self._query = None
        raise TargetUnavailable("milvus", "its generations change all the time")

    async def _relatives(self, asked: int) -> list[Found]:
        assert self._branches.graph is not None
        return await self._branches.graph.search(
            self._scope, self._seeds(), self._request.graph, limit=asked, with_seeds=not self._fused
        )

    def _seeds(self) -> dict[int, float]:
        """Memories to start from, with weights up to 1."""
        request = self._request
        if request.graph.seeds is not None:
            return dict.fromkeys(request.graph.seeds, 1.0)
        if self._fused and "graph" not in self._lists:
            # The ranking that the answer begins with, too.
            best = self._ranked()[: request.graph.count]
        else:
            lists = {name: without(found, self._gone) for name, found in self._lists.items() if name != "graph"}
            best = rank(lists, fused=True, weights=request.weights, rrf_k=request.rrf_k)[: request.graph.count]
        return {one.key: one.score / best[0].score for one in best}
