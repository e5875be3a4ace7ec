"""Nearest vectors of one scope in Milvus.

The scope is part of every call, made here and nowhere else: backend, tenant and user as exact strings, and expiry. A
caller's own condition can only narrow it. Source: design sections 5 and 8.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from memplane.contracts import Scope
from memplane.projections.milvus_client import MilvusConnection
from memplane.projections.milvus_row import microseconds

if TYPE_CHECKING:
    from memplane.projections.generation import Generation

MAX_HITS = 16_384
"""The most that Milvus returns for one query."""

EF_SLACK = 2
"""The index looks at this many times as many candidates as are asked for."""

MIN_EF = 64
"""Candidates that the index looks at, at least: what HNSW needs for a recall near 1 on small answers."""


class VectorHit(NamedTuple):
    """`score` is the cosine of the angle between both vectors; `version` is the one that Milvus holds."""

    memory_id: int
    score: float
    version: int


def quoted(text: str) -> str:
    """A string literal of Milvus' expressions.

    Everything that could end the literal is escaped; other characters stand for themselves. Control characters get Go's
    escapes, which a server knows and Milvus Lite refuses.
    """
    return json.dumps(text, ensure_ascii=False)


def scope_filter(backend: str, scope: Scope, now: datetime) -> str:
    """What every search in `scope` is restricted to; `now` is an aware time."""
    return (
        f"backend == {quoted(backend)} and tenant == {quoted(scope.tenant)} and user_id == {quoted(scope.user)}"
        f" and (expires_at == -1 or expires_at > {microseconds(now)})"
    )


async def search_vectors(
    connection: MilvusConnection,
    generation: Generation,
    scope: Scope,
    vector: Sequence[float],
    *,
    limit: int,
    now: datetime,
    filter_expr: str | None = None,
    timeout: float | None = None,
) -> list[VectorHit]:
    """The nearest vectors of the scope that satisfy `filter_expr`, best first, ties by id; at most `limit`.

    `vector` has the generation's dimensions. Reads with bounded staleness: what a worker has reported as projected is
    seen, because its own strong read waited until every reader had it; what it is just writing may be. Raises
    `TargetUnavailable`, `ProjectionRefused`, and `ProjectionMissing` when the generation's collection is gone.
    """
    condition = scope_filter(generation.backend, scope, now)
    if filter_expr is not None:
        condition = f"{condition} and ({filter_expr})"
    wanted = min(limit, MAX_HITS)
    answer = await connection.call(
        "search",
        generation.collection,
        data=[list(vector)],
        filter=condition,
        limit=wanted,
        output_fields=["version"],
        anns_field="vector",
        search_params={"metric_type": "COSINE", "params": {"ef": min(max(wanted * EF_SLACK, MIN_EF), 32_768)}},
        consistency_level="Bounded",
        timeout=timeout,
    )
    hits = [_hit(hit) for hit in answer[0]] if answer else []
    found = [hit for hit in hits if math.isfinite(hit.score)]
    found.sort(key=lambda hit: (-hit.score, hit.memory_id))
    return found


def _hit(hit: dict[str, Any]) -> VectorHit:
    # As plain mappings: the driver's own lookups take longer than everything else here.
    # A server calls the primary key `id`, Milvus Lite calls it by its name.
    key = dict.get(hit, "id")
    if key is None:
        key = dict.__getitem__(hit, "memory_id")
    return VectorHit(key, float(dict.__getitem__(hit, "distance")), dict.__getitem__(hit, "entity")["version"])
