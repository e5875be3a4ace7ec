"""From known memories to their relatives: breadth-first along relations, in either direction, within one scope.

One query per hop, so that a dense graph costs what its nodes cost and not what its paths do. Both ends of every step
are memories of this backend and scope, and not expired; a bare node (its memory is not projected) is no step.
Source: design sections 5 and 8.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from memplane.contracts import Scope
from memplane.projections.milvus_row import microseconds
from memplane.projections.neo4j_client import Neo4jConnection

MAX_STEPS = 5_000
"""Steps (pairs of neighbours) that one hop follows at most, those of the smallest ids first."""

# One record for all steps: the driver reads each one with several turns of the event loop.
_STEP = """
UNWIND $frontier AS id
MATCH (a:Memory {backend: $backend, memory_id: id})
WHERE a.tenant = $tenant AND a.user_id = $user AND (a.expires_at IS NULL OR a.expires_at > $now)
MATCH (a)-[r:RELATES]-(b:Memory)
WHERE r.backend = $backend AND b.backend = $backend AND b.tenant = $tenant AND b.user_id = $user
  AND (b.expires_at IS NULL OR b.expires_at > $now) AND ($types IS NULL OR r.type IN $types)
WITH DISTINCT id AS source, b.memory_id AS target
ORDER BY source, target LIMIT $steps
RETURN collect([source, target]) AS steps
"""


class GraphHit(NamedTuple):
    """`score`: the best seed's weight, times `decay` per hop; `hops`: steps from that seed, 0 for a seed itself."""

    memory_id: int
    score: float
    hops: int


async def expand(
    connection: Neo4jConnection,
    backend: str,
    scope: Scope,
    seeds: Mapping[int, float],
    *,
    depth: int,
    limit: int,
    decay: float,
    now: datetime,
    types: Sequence[str] | None = None,
    timeout: float | None = None,
) -> list[GraphHit]:
    """What is reached from `seeds` (memory id to weight above 0) in at most `depth` hops; best first, ties by id.

    The seeds stand in the list too, with hops 0 unless a heavier seed's path gives them more. `types` restricts the
    relations that are followed. Raises `TargetUnavailable`, `ProjectionRefused`.
    """
    reached = {seed: GraphHit(seed, weight, 0) for seed, weight in seeds.items()}
    frontier = sorted(seeds)
    for _ in range(depth):
        if not frontier:
            break
        rows = await connection.read_once(
            _STEP,
            {
                "frontier": frontier,
                "backend": backend,
                "tenant": scope.tenant,
                "user": scope.user,
                "now": microseconds(now),
                "types": list(types) if types is not None else None,
                "steps": MAX_STEPS,
            },
            timeout=timeout,
        )
        frontier = follow(reached, [(source, target) for source, target in rows[0]["steps"]], decay)
    return rank(reached.values())[:limit]


def follow(reached: dict[int, GraphHit], steps: Sequence[tuple[int, int]], decay: float) -> list[int]:
    """Take the steps of one hop: `reached` learns every target whose score grows; returns those targets, sorted."""
    before = {source: reached[source] for source, _ in steps}
    grown: set[int] = set()
    for source, target in steps:
        score = before[source].score * decay
        known = reached.get(target)
        if score > 0 and math.isfinite(score) and (known is None or score > known.score):
            reached[target] = GraphHit(target, score, before[source].hops + 1)
            grown.add(target)
    return sorted(grown)


def rank(hits: Iterable[GraphHit]) -> list[GraphHit]:
    """Best score first, ties by id."""
    return sorted(hits, key=lambda hit: (-hit.score, hit.memory_id))
