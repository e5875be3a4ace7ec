"""`RerankingProvider`: more candidates than asked for, put into a better order (case R-32)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

from memplane.contracts import JSON, MAX_LIMIT, EmbeddingProvider
from memplane.nodes.shapes import is_array, is_number, is_object
from memplane.retrieval.documents import (
    Candidate,
    RetrievalContext,
    RetrievalOutput,
    RetrievalProvider,
    RetrievalQuery,
    RetrievalRequest,
)
from memplane.retrieval.embedding import embed_contents
from memplane.retrieval.errors import invalid_output, require_integer
from memplane.retrieval.outputs import check_output
from memplane.retrieval.query_vector import query_vector


class Reranker(Protocol):
    """Chooses and orders. Returns `limit` entries (or all, when there are fewer), best first: `{index, score?}`."""

    async def rerank(
        self, query: RetrievalQuery, candidates: Sequence[Candidate], *, limit: int, context: RetrievalContext
    ) -> Sequence[Mapping[str, JSON]]: ...


class RerankingProvider:
    """Asks the backend for `pool` candidates (None: the call's `rerank.candidateLimit`, 100 when nobody says otherwise)
    or the limit when that is larger, and returns what the reranker chose of them, with its scores.

    Raises RETRIEVAL_INVALID_BACKEND_OUTPUT for an index out of range or twice, another count, a score that is not
    finite. Without candidates the reranker is not called.
    """

    def __init__(self, *, backend: RetrievalProvider, reranker: Reranker, pool: int | None = None) -> None:
        self._backend = backend
        self._reranker = reranker
        self._pool = None if pool is None else require_integer("pool", pool, 1, MAX_LIMIT)

    async def search(self, request: RetrievalRequest, context: RetrievalContext) -> RetrievalOutput:
        pool = context.defaults.rerank_candidate_limit if self._pool is None else self._pool
        asked = request.copy()
        asked["limit"] = max(pool, request["limit"])
        output = check_output(asked, await self._backend.search(asked, context))
        candidates = output["candidates"]
        limit = min(request["limit"], len(candidates))
        chosen: Any = []
        if candidates:
            chosen = await self._reranker.rerank(request["query"], candidates, limit=limit, context=context)
        reranked = output.copy()
        reranked["candidates"] = _ordered(candidates, chosen, limit)
        return reranked


class CosineReranker:
    """Orders by the cosine between the query and each candidate's content, both embedded (a `content` that is a vector
    is taken as it is). Equal cosines keep the backend's order; vectors of any length and size give finite scores."""

    def __init__(self, *, embedding: EmbeddingProvider) -> None:
        self._embedding = embedding

    async def rerank(
        self, query: RetrievalQuery, candidates: Sequence[Candidate], *, limit: int, context: RetrievalContext
    ) -> list[dict[str, JSON]]:
        wanted = await query_vector(query["content"], embedding=self._embedding, signal=context.signal)
        vectors = await embed_contents(
            self._embedding,
            [candidate["content"] for candidate in candidates],
            context.defaults.batch_size,
            purpose="document",
            signal=context.signal,
        )
        scores = [cosine(wanted, vector) for vector in vectors]
        order = sorted(range(len(scores)), key=lambda index: -scores[index])
        return [{"index": index, "score": scores[index]} for index in order[:limit]]


def cosine(left: Sequence[float], right: Sequence[float]) -> float:
    """The cosine of two finite vectors of one length, within -1..1; 0 when either has no length."""
    left, right = _scaled(left), _scaled(right)
    length = math.sqrt(_dot(left, left)) * math.sqrt(_dot(right, right))
    return max(-1.0, min(1.0, _dot(left, right) / length)) if length else 0.0


def _scaled(vector: Sequence[float]) -> Sequence[float]:
    # The largest component becomes 1, so that no square overflows.
    largest = max(map(abs, vector))
    return [value / largest for value in vector] if largest else vector


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(left, right, strict=True))


def _ordered(candidates: Sequence[Candidate], chosen: Any, limit: int) -> list[Candidate]:
    if not is_array(chosen) or len(chosen) != limit:
        raise invalid_output()
    seen: set[int] = set()
    ordered: list[Candidate] = []
    for entry in chosen:
        index = entry.get("index") if is_object(entry) else None
        if type(index) is not int or not 0 <= index < len(candidates) or index in seen:
            raise invalid_output()
        seen.add(index)
        candidate: dict[str, Any] = {**candidates[index]}
        if "score" in entry:
            if not is_number(entry["score"]):
                raise invalid_output()
            candidate["score"] = entry["score"]
        ordered.append(cast(Candidate, candidate))
    return ordered
