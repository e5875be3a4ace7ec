"""The last word on every hit: PostgreSQL says whether it is live, in scope and matching, and what it says now.

One statement per round. Bodies that the LTM cache holds in exactly the version that PostgreSQL names do not travel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from memplane.cache.ltm import LtmCache
from memplane.contracts import MemoryItem, Scope
from memplane.plugins.postgres.filters import Binds, to_sql
from memplane.plugins.postgres.rows import LIVE, item_of
from memplane.retrieval.filters import Filter
from memplane.schema.database import Database

_BODY: Final = ("key", "content", "document", "metadata", "created_at", "updated_at")

_COLUMNS: Final = "m.id, m.version, m.expires_at, m.version IS NOT DISTINCT FROM asked.version AS held, " + ", ".join(
    f"CASE WHEN m.version IS DISTINCT FROM asked.version THEN m.{name} END AS {name}" for name in _BODY
)


class Hydration:
    """Turns ids into memories, through the cache when there is one."""

    def __init__(self, database: Database, cache: LtmCache | None) -> None:
        self._database = database
        self._cache = cache if cache is not None and cache.enabled else None

    async def read(
        self,
        scope: Scope,
        ids: Sequence[int],
        filter: Filter | None,  # noqa: A002 - the wire's name
    ) -> dict[int, MemoryItem]:
        """The live memories of `scope` among `ids` that match the filter, as they are now."""
        if not ids:
            return {}
        held = [self._cache.version(scope, memory_id) for memory_id in ids] if self._cache else [None] * len(ids)
        binds = Binds(scope.tenant, scope.user, list(ids), held)
        condition = "" if filter is None else f" AND {to_sql(filter, binds)}"
        statement = (
            f"SELECT {_COLUMNS} FROM unnest($3::bigint[], $4::bigint[]) AS asked (id, version) "
            f"JOIN {{schema}}.long_term_memory AS m ON m.id = asked.id "
            f"WHERE m.tenant = $1 AND m.user_id = $2 AND {LIVE}{condition}"
        )
        async with self._database.acquire() as connection:
            rows = await connection.fetch(self._database.sql(statement), *binds.values)
        found: dict[int, MemoryItem] = {}
        lost: list[int] = []
        for row in rows:
            item = self._of_cache(scope, row["id"], row["version"]) if row["held"] else item_of(row)
            if item is None:
                lost.append(row["id"])
                continue
            found[row["id"]] = item
            if self._cache is not None and not row["held"]:
                self._cache.put(scope, item, expires_at=row["expires_at"])
        if lost:
            # Dropped from the cache while the statement ran: read once more, without it.
            found.update(await Hydration(self._database, None).read(scope, lost, filter))
        return found

    def _of_cache(self, scope: Scope, memory_id: int, version: int) -> MemoryItem | None:
        return self._cache.body(scope, memory_id, version) if self._cache is not None else None
