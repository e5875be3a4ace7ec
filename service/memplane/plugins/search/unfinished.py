"""The caller's newest memories whose vectors are not yet in Milvus, compared exactly (seed `002` section 11.3).

Unfinished is what has a pending or processing event. What was processed within `RECENT_SECONDS` counts, too: the search
in Milvus runs beside this statement and may have begun before that event took effect. Vectors come from the stored
embeddings; what is missing there is embedded and stored, so that the worker finds it. When the provider cannot embed
them, they are left out and the search is degraded: one text that no model takes must not end every search.
"""

from __future__ import annotations

import asyncio
import logging
import math
import operator
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final, TypeAlias

import asyncpg

from memplane.contracts import Scope
from memplane.errors import TargetUnavailable
from memplane.outbox.events import Target
from memplane.plugins.postgres.filters import Binds, to_sql
from memplane.plugins.postgres.rows import LIVE
from memplane.plugins.search.ranking import Found
from memplane.projections.embedding import MAX_CHARACTERS, Item, StoredEmbeddings, unpack
from memplane.retrieval.degradation import report_degraded
from memplane.retrieval.filters import Filter
from memplane.schema.database import Database

_log: Final = logging.getLogger(__name__)

SCANNED: Final = 1_000
"""Newest memories of the scope among which unfinished ones are looked for."""

RECENT_SECONDS: Final = 2.0

# Asked alone, because it is so cheap: most searches meet a backend where nothing waits.
_GATE: Final = """
SELECT EXISTS (SELECT FROM {schema}.memory_outbox AS o WHERE o.target = $1 AND o.status = 'pending')
       OR EXISTS (SELECT FROM {schema}.memory_outbox AS o WHERE o.target = $1 AND o.status = 'processing') AS waiting,
       EXISTS (SELECT FROM {schema}.memory_outbox AS o
               WHERE o.status = 'processed' AND o.processed_at > statement_timestamp() - $2::interval) AS recent,
       (SELECT g.id FROM {schema}.projection_generation AS g WHERE g.target = $1 AND g.state = 'active') AS generation
"""


def _of_memory(condition: str) -> str:
    """Whether the memory `n` has such an event of the target. LIMIT keeps the planner from collecting all of them."""
    return (
        "(SELECT TRUE FROM {schema}.memory_outbox AS o "
        f"WHERE o.target = $3 AND o.aggregate_id = n.id AND {condition} LIMIT 1) IS NOT NULL"
    )


_PENDING: Final = _of_memory("o.family = 'node' AND o.status = 'pending'")
_PROCESSING: Final = _of_memory("o.status = 'processing'")
# IS TRUE hides the time from the planner: it would collect what was processed recently for each memory anew.
_RECENT: Final = _of_memory(
    "o.status = 'processed' AND (o.processed_at > statement_timestamp() - $4::interval) IS TRUE"
)

_UNFINISHED: Final = f"""
WITH newest AS MATERIALIZED (
    SELECT m.id, m.updated_at FROM {{schema}}.long_term_memory AS m
    WHERE m.tenant = $1 AND m.user_id = $2 AND m.deleted_at IS NULL
    ORDER BY m.updated_at DESC, m.id DESC LIMIT {SCANNED}
), unfinished AS MATERIALIZED (
    SELECT n.id FROM newest AS n WHERE {_PENDING} OR {_PROCESSING} OR {_RECENT}
    ORDER BY n.updated_at DESC, n.id DESC LIMIT $5::int
)
"""

Space: TypeAlias = tuple[str, str, int]
"""Model, revision and dimensions: only vectors of one space can be compared."""


def _texts(source: str, wanted: str, space: Space, binds: Binds) -> str:
    """A SELECT of the memories `source AS u (id)` with their stored vectors, or their texts where there is none."""
    model, revision, dimensions = space
    return (
        f"SELECT m.id, m.version, m.text_hash, e.vector, {wanted} AS wanted, "
        f"CASE WHEN e.vector IS NULL THEN left(m.content, {MAX_CHARACTERS}) END AS text FROM {source} "
        "JOIN {schema}.long_term_memory AS m ON m.id = u.id AND m.tenant = $1 AND m.user_id = $2 "
        "LEFT JOIN {schema}.memory_embedding AS e ON e.tenant = m.tenant AND e.text_hash = m.text_hash "
        f"AND e.model = {binds.add(model, 'text')} AND e.revision = {binds.add(revision, 'text')} "
        f"AND e.dimensions = {binds.add(dimensions, 'int')}"
    )


@dataclass(frozen=True, slots=True)
class Fresh:
    """`stale`: memories about which Milvus may say something old. `hits`: those of them that match, compared now.

    `generation` is the active one when this was asked. What had reached Milvus by then, that generation has; a search
    in another one may lack it (decision 0018).
    """

    stale: frozenset[int]
    hits: list[Found]
    generation: int | None = None


class Unfinished:
    """Finds what Milvus does not know yet, or knows in another version, and compares it itself."""

    def __init__(self, database: Database, embeddings: Sequence[StoredEmbeddings], *, embedding_seconds: float) -> None:
        self._database = database
        self._embeddings = embeddings
        self._embedding_seconds = embedding_seconds

    async def newest(
        self,
        scope: Scope,
        vector: Sequence[float],
        space: Space,
        *,
        limit: int,
        filter: Filter | None,  # noqa: A002 - the wire's name
    ) -> Fresh:
        """At most `limit` unfinished memories, the newest first; `vector` belongs to `space`."""
        recent = timedelta(seconds=RECENT_SECONDS)
        async with self._database.acquire() as connection:
            gate = await connection.fetchrow(self._database.sql(_GATE), Target.MILVUS.value, recent)
        assert gate is not None
        if not (gate["waiting"] or gate["recent"]):
            return Fresh(frozenset(), [], gate["generation"])
        binds = Binds(scope.tenant, scope.user, Target.MILVUS.value, recent, limit)
        wanted = LIVE if filter is None else f"({LIVE} AND {to_sql(filter, binds)})"
        statement = _UNFINISHED + _texts("unfinished AS u", wanted, space, binds)
        return replace(await self._compared(scope, statement, binds, vector, space), generation=gate["generation"])

    async def current(self, scope: Scope, vector: Sequence[float], space: Space, ids: Sequence[int]) -> list[Found]:
        """The given memories as they are now: for hits whose vector belongs to another version."""
        binds = Binds(scope.tenant, scope.user, list(ids))
        statement = _texts("unnest($3::bigint[]) AS u (id)", LIVE, space, binds)
        return (await self._compared(scope, statement, binds, vector, space)).hits

    async def _compared(
        self, scope: Scope, statement: str, binds: Binds, vector: Sequence[float], space: Space
    ) -> Fresh:
        async with self._database.acquire() as connection:
            rows = await connection.fetch(self._database.sql(statement), *binds.values)
        wanted = [row for row in rows if row["wanted"]]
        missing = [row for row in wanted if row["vector"] is None]
        made: dict[int, Sequence[float]] = {}
        embeddings = next((one for one in self._embeddings if _space(one) == space), None)
        if missing and embeddings is not None:
            items = [(scope.tenant, bytes(row["text_hash"]), row["text"]) for row in missing]
            vectors = await self._embedded(embeddings, items)
            made = dict(zip((row["id"] for row in missing), vectors, strict=False))
        hits = []
        for row in wanted:
            held = unpack(row["vector"]) if row["vector"] is not None else made.get(row["id"])
            score = cosine(vector, held) if held is not None else None
            if score is not None:
                hits.append(Found(row["id"], score, row["version"]))
        return Fresh(frozenset(row["id"] for row in rows), hits)

    async def _embedded(self, embeddings: StoredEmbeddings, items: Sequence[Item]) -> Sequence[Sequence[float]]:
        """The vectors of all items, or none of them."""
        try:
            async with asyncio.timeout(self._embedding_seconds):
                return await embeddings.vectors(items)
        except TargetUnavailable as error:
            if error.target != "embedding":
                raise
        except (asyncpg.PostgresError, asyncpg.InterfaceError):
            raise
        except Exception as error:  # noqa: BLE001 - a provider is foreign code that may raise anything
            _log.warning("new memories could not be embedded", extra={"error": type(error).__name__})
        report_degraded("embedding")
        return []


def _space(embeddings: StoredEmbeddings) -> Space:
    provider = embeddings.provider
    return provider.model, provider.revision, provider.dimensions


def cosine(direction: Sequence[float], vector: Sequence[float] | array[float]) -> float | None:
    """The cosine of the angle between a vector of length 1 and another; None when that has no direction."""
    product = sum(map(operator.mul, direction, vector))
    length = math.sqrt(sum(map(operator.mul, vector, vector)))
    score = product / length if length > 0 else math.nan
    return min(1.0, max(-1.0, score)) if math.isfinite(score) else None
