"""How many memories a scope has, and how many hold a lexeme: what tells a rare word of a question from a common one.

Common lexemes are known from the planner's statistics (`most_common_elems`), which cost one small read a minute; rare
ones are counted through the index, at most `COUNTED` of each, and remembered for a while. Lexemes carry their scope
(`tokens`), so every number is one of the caller's scope.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from memplane.contracts import Scope
from memplane.schema.database import Connection, Database

COUNTED = 5_000
"""A count stops here: beyond it a lexeme is common, and how common matters little."""

REMEMBERED_SECONDS = 300.0
REMEMBERED_LEXEMES = 50_000
STATISTICS_SECONDS = 60.0

_STATISTICS = """
SELECT s.most_common_elems::text::text[] AS lexemes, s.most_common_elem_freqs AS fractions,
       GREATEST(c.reltuples, 0)::float8 AS rows
FROM pg_catalog.pg_stats AS s
JOIN pg_catalog.pg_class AS c ON c.oid = $1::regclass
WHERE s.schemaname = $2 AND s.tablename = 'long_term_memory' AND s.attname = 'search_tokens'
  AND s.most_common_elems IS NOT NULL
"""

_COUNT = f"""
SELECT (SELECT count(*) FROM (
            SELECT FROM {{schema}}.long_term_memory AS m
            WHERE m.tenant = $2 AND m.user_id = $3 AND m.deleted_at IS NULL LIMIT {COUNTED}) AS scoped), 0 AS place
UNION ALL
SELECT (SELECT count(*) FROM (
            SELECT FROM {{schema}}.long_term_memory AS m
            WHERE m.deleted_at IS NULL AND m.search_tokens @@ lexeme LIMIT {COUNTED}) AS holders), place
FROM unnest($1::tsquery[]) WITH ORDINALITY AS asked (lexeme, place)
ORDER BY place
"""


class Frequencies:
    """Numbers of holders per lexeme, for ranking: approximate, and as old as `REMEMBERED_SECONDS`."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._common: dict[str, float] = {}
        self._common_until = float("-inf")
        self._counted: OrderedDict[str, tuple[float, float]] = OrderedDict()

    async def of(self, connection: Connection, scope: Scope, lexemes: Sequence[str]) -> tuple[float, dict[str, float]]:
        """The number of the scope's memories (`COUNTED` stands for more), and of the holders of each lexeme.

        One statement at most, none when all are remembered.
        """
        now = self._clock()
        if now >= self._common_until:
            await self._read_statistics(connection)
            self._common_until = now + STATISTICS_SECONDS
        known = {lexeme: number for lexeme in lexemes if (number := self._known(lexeme, now)) is not None}
        missing = [lexeme for lexeme in lexemes if lexeme not in known]
        size = self._known(place := f"{scope.tenant}\0{scope.user}", now)
        if missing or size is None:
            asked = [f"'{lexeme}'" for lexeme in missing]
            rows = await connection.fetch(self._database.sql(_COUNT), asked, scope.tenant, scope.user)
            for name, row in zip([place, *missing], rows, strict=True):
                known[name] = float(row[0])
                self._remember(name, float(row[0]), now)
            size = known.pop(place)
        return size, known

    def _known(self, lexeme: str, now: float) -> float | None:
        common = self._common.get(lexeme)
        if common is not None:
            return common
        number, until = self._counted.get(lexeme, (0.0, float("-inf")))
        return number if now < until else None

    def _remember(self, lexeme: str, number: float, now: float) -> None:
        self._counted[lexeme] = (number, now + REMEMBERED_SECONDS)
        self._counted.move_to_end(lexeme)
        while len(self._counted) > REMEMBERED_LEXEMES:
            self._counted.popitem(last=False)

    async def _read_statistics(self, connection: Connection) -> None:
        table = f"{self._database.schema}.long_term_memory"
        row = await connection.fetchrow(_STATISTICS, table, self._database.settings.schema_name)
        if row is None:
            return
        # The list of fractions ends with three more: their least, their greatest, and the fraction of NULLs.
        pairs = zip(row["lexemes"], row["fractions"], strict=False)
        self._common = {lexeme: fraction * row["rows"] for lexeme, fraction in pairs}
