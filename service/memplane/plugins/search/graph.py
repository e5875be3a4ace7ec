"""The graph branch: relatives of memories that are known to fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from memplane.contracts import Scope
from memplane.plugins.search.ranking import Found
from memplane.plugins.search.request import GraphOptions
from memplane.projections.neo4j_client import Neo4jConnection
from memplane.projections.neo4j_search import expand
from memplane.schema.database import Database
from memplane.schema.identity import read_identity


class GraphSearch:
    """Expansion along the relations of this backend."""

    def __init__(
        self,
        database: Database,
        neo4j: Neo4jConnection,
        *,
        timeout: float,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._database = database
        self._neo4j = neo4j
        self._timeout = timeout
        self._now = now
        self._backend: str | None = None

    async def search(
        self, scope: Scope, seeds: Mapping[int, float], options: GraphOptions, *, limit: int, with_seeds: bool
    ) -> list[Found]:
        """Relatives of the seeds (id to weight), best first; the seeds, too, when asked. At most `limit`."""
        if not seeds:
            return []
        if self._backend is None:
            self._backend = str(await read_identity(self._database))
        hits = await expand(
            self._neo4j,
            self._backend,
            scope,
            seeds,
            depth=options.depth,
            limit=limit + len(seeds),
            decay=options.decay,
            now=self._now(),
            types=options.types,
            timeout=self._timeout,
        )
        return [Found(hit.memory_id, hit.score) for hit in hits if with_seeds or hit.hops > 0][:limit]
