"""The last word on every hit: PostgreSQL says whether it is live, in scope and matching, and what it says now.

One statement per round. Bodies that the LTM cache holds in exactly the version that PostgreSQL names do not travel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from memplane.cache.ltm import LtmCache
from memplane.contracts import MemoryItem, Scope
from memplane.plugins.postgres.filters import Binds, to_sql
from memplane.plugins.postgres.rows import ITEM_COLUMNS, LIVE, item_of
from memplane.retrieval.filters import Filter
from memplane.schema.canonical import invalid
from memplane.schema.database import Database

_BODY: Final = ("key", "content", "document", "metadata", "created_at", "updated_at")

_BY_ID: Final = "(SELECT l.* FROM {schema}.long_term_memory AS l WHERE l.id = ANY($3::bigint[]) OFFSET 0) AS m"
"""By the primary key alone, whatever else there is to choose from: a steady read (`Database.read`)."""

_ALL: Final = f"{ITEM_COLUMNS}, FALSE AS held FROM {_BY_ID}"

_UNLESS_HELD: Final = (
    "m.id, m.version, m.expires_at, asked.version IS NOT NULL AS held, "
    + ", ".join(f"CASE WHEN asked.version IS NULL THEN m.{name} END AS {name}" for name in _BODY)
    + f" FROM {_BY_ID}"
    " LEFT JOIN unnest($4::bigint[], $5::bigint[]) AS asked (id, version)"
    " ON asked.id = m.id AND asked.version = m.version"
)
"""What the cache holds in the version that the truth has does not travel."""


MAX_BYTES: Final = 64 * 2**20
"""Contents that one search returns at most: ten thousand memories of a megabyte each must not fill the process."""

UNMEASURED: Final = MAX_BYTES // 2**20
"""So many memories cannot be larger than that together."""

_SIZE: Final = (
    "SELECT COALESCE(sum(octet_length(m.content)), 0) FROM {schema}.long_term_memory AS m"
    " WHERE m.tenant = $1 AND m.user_id = $2 AND m.id = ANY($3::bigint[])"
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
        """The live memories of `scope` among `ids` that match the filter, as they are now.

        Raises INVALID_INPUT when they are too large to be read at once.
        """
        if not ids:
            return {}
        held = self._held(scope, ids)
        binds = Binds(scope.tenant, scope.user, list(ids))
        if held:
            binds.values += [list(held), list(held.values())]
        condition = "" if filter is None else f" AND {to_sql(filter, binds)}"
        statement = self._database.sql(
            f"SELECT {_UNLESS_HELD if held else _ALL} WHERE m.tenant = $1 AND m.user_id = $2 AND {LIVE}{condition}"
        )
        if filter is None and len(ids) <= UNMEASURED:
            rows = await self._database.read(statement, *binds.values)
        else:
            async with self._database.acquire() as connection:
                if len(ids) > UNMEASURED:
                    size = await connection.fetchval(self._database.sql(_SIZE), scope.tenant, scope.user, list(ids))
                    if size > MAX_BYTES:
                        invalid(f"limit is too large: these memories hold more than {MAX_BYTES} bytes")
                rows = await connection.fetch(statement, *binds.values)
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

    def _held(self, scope: Scope, ids: Sequence[int]) -> dict[int, int]:
        """The ids whose bodies the cache holds, and in which version."""
        if self._cache is None:
            return {}
        versions = ((memory_id, self._cache.version(scope, memory_id)) for memory_id in ids)
        return {memory_id: version for memory_id, version in versions if version is not None}

    def _of_cache(self, scope: Scope, memory_id: int, version: int) -> MemoryItem | None:
        return self._cache.body(scope, memory_id, version) if self._cache is not None else None
