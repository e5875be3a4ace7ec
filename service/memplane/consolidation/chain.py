"""The audit chain: which memory superseded which (`memory_supersedes`), upwards and downwards from one of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from memplane.schema.database import Database

LONGEST: Final = 1000
"""Entries returned at most in either direction."""

_COLUMNS: Final = "superseded_id, survivor_id, user_id, rule, reason, superseded_version, survivor_version, created_at"
# Ids only ever lead to memories of the same tenant and user, but the scope is asked of every entry all the same. A
# circle takes an application of old that takes deletes back.
_UP: Final = f"""
WITH RECURSIVE chain AS (
    SELECT s.*, 1 AS depth, ARRAY[s.superseded_id] AS path FROM {{schema}}.memory_supersedes AS s
    WHERE s.superseded_id = $1 AND ($2::text IS NULL OR s.tenant = $2)
    UNION ALL
    SELECT s.*, c.depth + 1, c.path || s.superseded_id
    FROM chain AS c JOIN {{schema}}.memory_supersedes AS s ON s.superseded_id = c.survivor_id
    WHERE c.depth < $3 AND s.tenant = c.tenant AND s.user_id = c.user_id AND s.superseded_id <> ALL (c.path)
)
SELECT {_COLUMNS} FROM chain ORDER BY depth
"""
_DOWN: Final = f"""
WITH RECURSIVE chain AS (
    SELECT s.*, 1 AS depth, ARRAY[s.superseded_id] AS path FROM {{schema}}.memory_supersedes AS s
    WHERE s.survivor_id = $1 AND ($2::text IS NULL OR s.tenant = $2)
    UNION ALL
    SELECT s.*, c.depth + 1, c.path || s.superseded_id
    FROM chain AS c JOIN {{schema}}.memory_supersedes AS s ON s.survivor_id = c.superseded_id
    WHERE c.depth < $3 AND s.tenant = c.tenant AND s.user_id = c.user_id AND s.superseded_id <> ALL (c.path)
)
SELECT {_COLUMNS} FROM chain ORDER BY created_at, superseded_id LIMIT $3
"""


@dataclass(frozen=True, slots=True)
class Superseded:
    """One entry. The versions are those that were merged, and the survivor's after the merge."""

    superseded_id: int
    survivor_id: int
    user_id: str
    rule: str
    reason: str
    superseded_version: int
    survivor_version: int
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Chain:
    """`superseded_by`: from the memory up to the one that stands today. `supersedes`: everything merged into it, and
    into those, oldest first."""

    superseded_by: tuple[Superseded, ...]
    supersedes: tuple[Superseded, ...]


async def read_chain(database: Database, memory_id: int, tenant: str | None) -> Chain:
    """The chain of a memory of this tenant (None: of any); both sides empty for one that was never merged."""
    async with database.acquire() as connection:
        up = await connection.fetch(database.sql(_UP), memory_id, tenant, LONGEST)
        down = await connection.fetch(database.sql(_DOWN), memory_id, tenant, LONGEST)
    return Chain(tuple(Superseded(*row) for row in up), tuple(Superseded(*row) for row in down))
