"""Seed `002` section 15.1: each test is one of its sentences, on a real PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest
from tests.consolidation.world import User, job

from memplane.consolidation import PlanConflict, apply, make_plan
from memplane.contracts import CallOptions, Scope
from memplane.errors import PluginError
from memplane.outbox.events import Target
from memplane.plugins.postgres.backend import PostgresBackend
from memplane.plugins.postgres.store import PostgresStore
from memplane.schema.database import Database

OPTIONS = CallOptions()
EVERYTHING = """
SELECT row_to_json(m)::text AS row FROM {schema}.long_term_memory AS m
UNION ALL SELECT row_to_json(e)::text FROM {schema}.memory_edge AS e
UNION ALL SELECT row_to_json(o)::text FROM {schema}.memory_outbox AS o
UNION ALL SELECT row_to_json(s)::text FROM {schema}.memory_supersedes AS s
ORDER BY 1
"""


@pytest.fixture
def store(database: Database) -> PostgresStore:
    return PostgresBackend(database, targets=[Target.MILVUS, Target.NEO4J]).scoped(Scope("acme", "ann"))


async def everything(database: Database) -> list[str]:
    async with database.acquire() as connection:
        return [row["row"] for row in await connection.fetch(database.sql(EVERYTHING))]


@asynccontextmanager
async def refusing(database: Database, table: str, operation: str) -> AsyncIterator[None]:
    """PostgreSQL itself refuses this operation on this table, as a full disk or a broken rule would."""
    async with database.acquire() as connection:
        await connection.execute(
            database.sql(
                f"CREATE OR REPLACE FUNCTION {{schema}}.refuse() RETURNS trigger LANGUAGE plpgsql AS"
                f" $$ BEGIN RAISE EXCEPTION 'refused'; END $$;"
                f" CREATE TRIGGER refuse BEFORE {operation} ON {{schema}}.{table}"
                f" FOR EACH ROW EXECUTE FUNCTION {{schema}}.refuse()"
            )
        )
    try:
        yield
    finally:
        async with database.acquire() as connection:
            await connection.execute(database.sql(f"DROP TRIGGER refuse ON {{schema}}.{table}"))


@pytest.mark.parametrize("change", ["write", "update", "delete"])
async def test_a_change_whose_outbox_insert_fails_is_rolled_back_whole(
    store: PostgresStore, database: Database, change: str
) -> None:
    first, second = await store.write({"memories": [{"content": "one"}, {"content": "two"}]}, OPTIONS)
    before = await everything(database)
    entries: Any = [{"id": item["id"], "content": "changed"} for item in (first, second)]
    changes = {
        "write": store.write({"memories": [{"content": "three"}]}, OPTIONS),
        "update": store.update({"memories": entries}, OPTIONS),
        "delete": store.delete({"ids": [first["id"], second["id"]]}, OPTIONS),
    }
    chosen = changes.pop(change)
    for other in changes.values():
        other.close()
    async with refusing(database, "memory_outbox", "INSERT"):
        with pytest.raises(asyncpg.RaiseError):
            await chosen
    assert await everything(database) == before
    assert len(before) == 6, "two memories and an event of each target"


@pytest.mark.parametrize(
    ("table", "operation"),
    [
        ("long_term_memory", "UPDATE"),
        ("memory_edge", "INSERT"),
        ("memory_supersedes", "INSERT"),
        ("memory_outbox", "INSERT"),
    ],
)
async def test_a_merge_of_which_any_step_fails_changes_no_memory_and_no_event(
    database: Database, table: str, operation: str
) -> None:
    ann = User(database)
    (liked,) = await ann.write("liked")
    await ann.write("same")
    await ann.write("same", relations=[{"type": "likes", "target": str(liked)}])
    plan, *_ = await make_plan(database, ann.scope, job("exact"))
    before = await everything(database)
    async with refusing(database, table, operation):
        with pytest.raises(asyncpg.RaiseError):
            await apply(ann.writing, ann.scope, plan.steps)
    assert await everything(database) == before
    await apply(ann.writing, ann.scope, plan.steps)
    assert await everything(database) != before, "the same plan works once nothing refuses"


async def test_a_merge_whose_versions_changed_meanwhile_is_rolled_back(database: Database) -> None:
    ann = User(database)
    first, _ = await ann.write("same", "same")
    plan, *_ = await make_plan(database, ann.scope, job("exact"))
    await ann.update(first, content="changed")
    before = await everything(database)
    with pytest.raises(PlanConflict):
        await apply(ann.writing, ann.scope, plan.steps)
    assert await everything(database) == before


async def test_of_concurrent_updates_of_one_memory_exactly_one_expected_version_succeeds(
    store: PostgresStore, database: Database
) -> None:
    (item,) = await store.write({"memories": [{"content": "start"}]}, OPTIONS)
    for expected in range(1, 6):
        entries: list[Any] = [
            {"id": item["id"], "content": f"{expected}/{number}", "expectedVersion": expected} for number in range(10)
        ]
        answers = await asyncio.gather(
            *(store.update({"memories": [entry]}, OPTIONS) for entry in entries), return_exceptions=True
        )
        refusals = [answer.code for answer in answers if isinstance(answer, PluginError)]
        assert refusals == ["CONFLICT"] * 9
        won = [isinstance(answer, list) for answer in answers]
        (now,) = await store.get({"ids": [item["id"]], "keys": []}, OPTIONS)
        assert (now["version"], now["content"]) == (expected + 1, f"{expected}/{won.index(True)}")
