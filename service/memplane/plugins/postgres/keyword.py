"""Keyword search in PostgreSQL: memories of one scope that hold words of a question, ranked by BM25.

Memories are short, so a word counts once per memory (BM25 with a term frequency of one): what ranks is how rare the
matching words are among the caller's memories, and how much else the memory holds. Ties go by id.

Ranking every memory that holds "the" would make a question slow, so candidates come from the rarest words, as many of
them as together name about `CANDIDATES` memories; the other words only add to the score. When even the rarest word is
in more memories than that, candidates are the newest that hold it and another word of the question; only if those are
fewer than asked for, the newest that hold it alone. Source: design section 8.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from memplane.contracts import Scope
from memplane.plugins.postgres.filters import Binds, to_sql
from memplane.plugins.postgres.frequency import Frequencies
from memplane.plugins.postgres.rows import LIVE
from memplane.plugins.postgres.tokens import as_tsquery, query_tokens
from memplane.retrieval.filters import Filter
from memplane.schema.database import Connection, Database

CANDIDATES = 1_000
"""Memories that are ranked, about; never fewer than are asked for, when there are as many."""

CROWDED = 400
"""Memories that are ranked when every word of the question is common."""

K1 = 1.2
B = 0.75
"""BM25's usual constants: saturation, and how much the length of a memory counts."""


class KeywordHit(NamedTuple):
    """`score` is finite and above 0; it compares within one answer only."""

    memory_id: int
    score: float


class KeywordSearch:
    """Keyword search on the truth itself: always current, filters and expiry included in the statement."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._frequencies = Frequencies(database)

    async def search(
        self,
        scope: Scope,
        text: str,
        *,
        limit: int,
        filter: Filter | None = None,  # noqa: A002 - the wire's name
    ) -> list[KeywordHit]:
        """Live memories of the scope that match the filter and hold a word of `text`, best first; at most `limit`."""
        lexemes = query_tokens(scope.tenant, scope.user, text)
        if not lexemes:
            return []
        async with self._database.acquire() as connection:
            size, holders = await self._frequencies.of(connection, scope, lexemes)
            needed = max(CANDIDATES, limit)
            essential = rarest(lexemes, holders, needed)
            if not essential:
                return []
            idf = weights(size, holders)
            condition = as_tsquery(essential)
            others = [lexeme for lexeme in idf if lexeme != essential[0]]
            crowded = holders[essential[0]] > needed
            if crowded:
                needed = max(CROWDED, limit)
            if crowded and others:
                condition = f"{as_tsquery(essential[:1])} & ({as_tsquery(others)})"
            rows = await self._rank(connection, scope, condition, idf, limit=limit, needed=needed, filter=filter)
            if crowded and others and len(rows) < limit:
                condition = as_tsquery(essential[:1])
                rows = await self._rank(connection, scope, condition, idf, limit=limit, needed=needed, filter=filter)
        return [KeywordHit(row["id"], row["score"]) for row in rows]

    async def _rank(
        self,
        connection: Connection,
        scope: Scope,
        condition: str,
        idf: Mapping[str, float],
        *,
        limit: int,
        needed: int,
        filter: Filter | None,  # noqa: A002 - the wire's name
    ) -> list[Any]:
        """The best of the newest `needed` memories that hold `condition`, a tsquery."""
        binds = Binds(scope.tenant, scope.user, condition, needed, limit)
        score = " + ".join(
            f"CASE WHEN m.search_tokens @@ {binds.add(_quoted(lexeme), 'tsquery')}"
            f" THEN {binds.add(weight, 'float8')} ELSE 0 END"
            for lexeme, weight in sorted(idf.items())
        )
        more = "" if filter is None else f" AND {to_sql(filter, binds)}"
        statement = (
            f"WITH candidates AS MATERIALIZED (SELECT m.id, {score} AS weight, length(m.search_tokens)::float8 AS size "
            "FROM {schema}.long_term_memory AS m WHERE m.tenant = $1 AND m.user_id = $2 "
            f"AND m.search_tokens @@ $3::tsquery AND {LIVE}{more} ORDER BY m.id DESC LIMIT $4::int) "
            f"SELECT id, weight * {K1 + 1}::float8 / "
            f"(1::float8 + {K1}::float8 * ({1 - B}::float8 + {B}::float8 * size / avg(size) OVER ())) AS score "
            "FROM candidates ORDER BY score DESC, id LIMIT $5::int"
        )
        rows: list[Any] = await connection.fetch(self._database.sql(statement), *binds.values)
        return rows


def rarest(lexemes: Sequence[str], holders: Mapping[str, float], needed: int) -> list[str]:
    """The lexemes that candidates are looked for by, the rarest first: at least one, unless nobody holds any."""
    chosen: list[str] = []
    total = 0.0
    for lexeme in sorted((one for one in lexemes if holders[one] > 0), key=lambda one: (holders[one], one)):
        if chosen and total + holders[lexeme] > needed:
            break
        chosen.append(lexeme)
        total += holders[lexeme]
    return chosen


def weights(size: float, holders: Mapping[str, float]) -> dict[str, float]:
    """BM25's inverse document frequency of each lexeme that somebody holds, above 0.

    `size` is the number of memories, counted up to a bound; a lexeme that more of them hold shows that there are more.
    """
    total = max(size, *holders.values())
    return {
        lexeme: math.log(1 + (total - number + 0.5) / (number + 0.5))
        for lexeme, number in holders.items()
        if number > 0
    }


def _quoted(lexeme: str) -> str:
    return f"'{lexeme}'"
