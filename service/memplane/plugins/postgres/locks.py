"""Row locks of memories: collected first, then taken once, in ascending id (design section 5).

Modes: FOR UPDATE for rows that change and for sources whose edges change, FOR SHARE for the targets of new edges, so
that no edge is ever made to a memory that is being deleted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from memplane.contracts import Scope
from memplane.plugins.postgres.rows import LIVE, Row
from memplane.schema.database import Connection, Database

_IN_SCOPE: Final = "($2::text IS NULL OR (m.tenant = $2 AND m.user_id = $3))"
_ROWS: Final = f"FROM {{schema}}.long_term_memory AS m WHERE m.id = ANY($1::bigint[]) AND {_IN_SCOPE} ORDER BY m.id"


def scope_binds(scope: Scope | None) -> tuple[str | None, str | None]:
    """Tenant and user as statements take them; both None for the sweep, which works on all scopes."""
    return (None, None) if scope is None else (scope.tenant, scope.user)


async def lock_and_read(
    connection: Connection,
    database: Database,
    scope: Scope | None,
    *,
    change: Collection[int],
    share: Collection[int] = (),
    columns: str,
) -> dict[int, Row]:
    """Lock the rows of both sets; returns those of `change` (tombstones too) by id, with `columns` (of `m`).

    Ids without a row in the scope are not locked: nothing can be changed in them, and ids are never used again.
    """
    wanted, shared = sorted(change), sorted(set(share) - set(change))
    binds = scope_binds(scope)
    statement = f"SELECT {columns} {_ROWS}"
    if shared:
        lock = database.sql("SELECT {schema}.lock_memory_rows($1::bigint[], $2::bigint[], $3::text, $4::text)")
        await connection.execute(lock, wanted, shared, *binds)
    else:
        statement += " FOR UPDATE OF m"
    rows = await connection.fetch(database.sql(statement), wanted, *binds)
    return {row["id"]: row for row in rows}


async def live_ids(connection: Connection, database: Database, scope: Scope, ids: Iterable[int]) -> set[int]:
    """Which of `ids` are live memories of the scope."""
    statement = f"SELECT m.id {_ROWS}".replace(" ORDER BY m.id", f" AND {LIVE}")
    rows = await connection.fetch(database.sql(statement), list(ids), scope.tenant, scope.user)
    return {row["id"] for row in rows}


async def share_live_ids(connection: Connection, database: Database, scope: Scope, ids: Iterable[int]) -> set[int]:
    """`live_ids`, locked FOR SHARE: for transactions that lock nothing else."""
    statement = f"SELECT m.id {_ROWS} FOR SHARE OF m".replace(" ORDER BY", f" AND {LIVE} ORDER BY")
    rows = await connection.fetch(database.sql(statement), sorted(ids), scope.tenant, scope.user)
    return {row["id"] for row in rows}
