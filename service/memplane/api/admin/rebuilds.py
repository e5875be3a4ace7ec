"""Generations and rebuilds as the admin API shows them, newest first."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from memplane.api.admin.models import Model, TargetName
from memplane.schema.database import Database


class ProjectionGeneration(Model):
    """One state of a target: what is in use, what is being built, what was replaced."""

    id: int
    target: TargetName
    state: Literal["building", "active", "retired", "dropped"]
    collection: str | None = Field(None, description="Milvus: the collection's name")
    embedding_model: str | None = None
    embedding_revision: str | None = None
    dimensions: int | None = None
    created_at: datetime
    activated_at: datetime | None = None
    retired_at: datetime | None = None
    drop_after: datetime | None = Field(None, description="when a replaced collection may be dropped")
    dropped_at: datetime | None = None


class Rebuild(Model):
    id: int
    target: TargetName
    state: Literal["unfinished", "completed", "aborted"]
    stage: Literal["fill", "sweep", "unmark", "repair", "verify", "done"]
    running: bool = Field(description="a process works on it now; an unfinished one can be taken up again")
    held_by: str | None = Field(None, description="host and process id")
    generation_id: int | None = None
    done: int = Field(description="memories that the stage has worked off")
    total: int = Field(description="memories of the stage, about")
    resumed: int = Field(description="how often it was taken up again")
    started_at: datetime
    updated_at: datetime
    finished_at: datetime | None = None
    error: str | None = Field(None, description="why the last process that worked on an unfinished one ended")


class Generations(Model):
    generations: list[ProjectionGeneration]
    rebuilds: list[Rebuild]


_GENERATIONS = """
SELECT id, target, state, collection, embedding_model, embedding_revision, dimensions, created_at, activated_at,
       retired_at, drop_after, dropped_at
FROM {schema}.projection_generation ORDER BY id DESC LIMIT $1
"""

_REBUILDS = """
SELECT id, target, state, stage, COALESCE(held_until > statement_timestamp(), FALSE) AS running, held_by,
       generation_id, done, total, resumed, started_at, updated_at, finished_at, error
FROM {schema}.rebuild_run ORDER BY id DESC LIMIT $1
"""


async def read_generations(database: Database, limit: int) -> Generations:
    """At most `limit` of each."""
    async with database.acquire() as connection:
        generations = await connection.fetch(database.sql(_GENERATIONS), limit)
        rebuilds = await connection.fetch(database.sql(_REBUILDS), limit)
    return Generations(
        generations=[ProjectionGeneration(**dict(row)) for row in generations],
        rebuilds=[Rebuild(**dict(row)) for row in rebuilds],
    )
