"""An old table becomes the truth in place, under the hands of an application that goes on writing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncpg
import pytest

from memplane.adoption.finish import StillWriting, finish
from memplane.adoption.run import adopt, look
from memplane.adoption.state import State
from memplane.contracts import Scope
from memplane.errors import SchemaError, SettingsError
from memplane.outbox.events import Target
from memplane.plugins.postgres.delete import delete
from memplane.plugins.postgres.update import update
from memplane.plugins.postgres.write import write
from memplane.plugins.postgres.writing import Writing
from memplane.schema.database import Database
from memplane.schema.migrate import check, migrate, migrations
from memplane.signal import Signal
from tests.adoption.conftest import MakeWorld, OldWorld
from tests.adoption.old_application import Account, running
from tests.adoption.support import check_account, check_rows, shape_of

FILE = "SELECT pg_relation_filenode('memplane.long_term_memory')"
SHAPE_NAMES = ("seed", "renamed")


async def adopted(world: OldWorld, **more: object) -> State:
    state = await adopt(world.database, world.adoption, targets=(), **more)  # type: ignore[arg-type]
    assert state is not None
    return state


@pytest.mark.parametrize("shape", SHAPE_NAMES)
async def test_an_adopted_table_is_what_the_migrations_make(
    old_world: MakeWorld, database: Database, shape: str
) -> None:
    world = await old_world(shape)
    with pytest.raises(SchemaError, match="--adopt"):
        await migrate(world.database)
    with pytest.raises(SchemaError, match="memplane migrate"):
        await check(world.database)
    file = await world.value(FILE)
    assert (await adopted(world)).stage == "adopted"
    assert await world.value(FILE) == file, "the table was rewritten"
    assert await check(world.database) == len(migrations())
    assert await migrate(world.database) == []
    await finish(world.database, world.adoption, targets=())
    assert await world.value(FILE) == file
    ours, theirs = await shape_of(database), await shape_of(world.database)
    assert theirs["others"] == ours["others"]
    assert theirs["columns"] >= ours["columns"]
    assert theirs["indexes"] >= ours["indexes"]
    for name in ("text_hash", "content_hash"):
        default = await world.value(
            "SELECT column_default FROM information_schema.columns"
            " WHERE table_schema = 'memplane' AND table_name = 'long_term_memory' AND column_name = $1",
            name,
        )
        assert default == (None if name == "text_hash" else "''::text")


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "rows"), [("seed", 20_000), ("renamed", 3000)])
async def test_nothing_of_a_writing_application_is_lost(
    old_world: MakeWorld, tmp_path: Path, shape: str, rows: int
) -> None:
    """A process inserts, updates and deletes all the while."""
    world = await old_world(shape, rows)
    account = tmp_path / "account.json"
    before = await world.value("SELECT count(*) FROM memplane.long_term_memory")
    with running(world.dsn, shape, account):
        state = await adopted(world)
        await asyncio.sleep(0.5)
    assert state.stage == "adopted"
    assert state.done >= before
    finished = await finish(world.database, world.adoption, targets=())
    assert finished is not None
    assert finished.stage == "finished"
    assert len(await check_rows(world.database)) >= before
    await check_account(world.sql, world.database, Account.load(account))


async def test_values_come_over_as_the_map_says(old_world: MakeWorld) -> None:
    world = await old_world("renamed", 40)
    changed = await world.value("SELECT changed FROM memplane.long_term_memory WHERE id = 2")
    await adopted(world)
    row = await world.sql.fetchrow("SELECT * FROM memplane.long_term_memory WHERE id = 2")
    assert row is not None
    assert (row["tenant"], row["user_id"], row["key"], row["content"]) == (
        "acme",
        "2",
        "slug-2",
        "memory 2 moved to Lisbon",
    )
    assert (row["importance"], row["category"], row["metadata"]) == (2 / 12, "k2", '{"a": 2, "b": 1.50}')
    assert row["updated_at"].replace(tzinfo=None) == changed == row["changed"], "the backfill is no change"
    tagged = await world.sql.fetchrow("SELECT * FROM memplane.long_term_memory WHERE id = 5")
    assert tagged is not None
    assert tagged["tags"] == ["x", "y"]
    listed = await world.sql.fetchrow("SELECT metadata, attributes::text FROM memplane.long_term_memory WHERE id = 1")
    assert tuple(listed or ()) == (None, "[1]"), "metadata that is no object stays the old application's"
    assert (
        await world.value("SELECT count(*) FROM memplane.long_term_memory WHERE is_deleted <> (deleted_at IS NOT NULL)")
        == 0
    )
    assert await world.value("SELECT count(*) FROM memplane.long_term_memory WHERE version <> 1") == 0


@pytest.mark.parametrize("shape", SHAPE_NAMES)
async def test_memplane_and_the_old_application_read_each_other(old_world: MakeWorld, shape: str) -> None:
    world = await old_world(shape, 20)
    await adopted(world)
    tenant, user = ("acme", "2") if shape == "renamed" else ("default", "user-2")
    writing, scope = Writing(world.database, frozenset({Target.MILVUS})), Scope(tenant, user)
    made = await write(
        writing, scope, [{"key": "fresh", "content": "written by memplane", "metadata": {"importance": 0.5}}], None
    )
    memory_id = int(made[0]["id"])
    body, owner = ("body", "owner") if shape == "renamed" else ("content", "user_id")
    seen = await world.sql.fetchrow(
        f"SELECT {body}, {owner}::text FROM memplane.long_term_memory WHERE id = $1", memory_id
    )
    assert tuple(seen or ()) == ("written by memplane", user)
    await update(writing, scope, [{"id": "2", "content": "changed by memplane"}], None)
    assert await world.value(f"SELECT {body} FROM memplane.long_term_memory WHERE id = 2") == "changed by memplane"
    await world.sql.execute(f"UPDATE memplane.long_term_memory SET {body} = 'changed by the old one' WHERE id = 2")
    row = await world.sql.fetchrow("SELECT version, content, content_hash FROM memplane.long_term_memory WHERE id = 2")
    assert tuple(row or ()) == (3, "changed by the old one", "")
    await delete(writing, scope, [str(memory_id)], None, None)
    if shape == "renamed":
        assert await world.value("SELECT is_deleted FROM memplane.long_term_memory WHERE id = $1", memory_id)
        slug = await world.value("SELECT slug FROM memplane.long_term_memory WHERE id = $1", memory_id)
        assert slug == "fresh"
    await finish(world.database, world.adoption, targets=())
    await check_rows(world.database)


async def test_after_the_end_a_row_that_memplane_did_not_write_is_refused(old_world: MakeWorld) -> None:
    world = await old_world("seed", 20)
    await adopted(world)
    insert = "INSERT INTO memplane.long_term_memory (user_id, content) VALUES ('u', 'late')"
    await world.sql.execute(insert)
    await finish(world.database, world.adoption, targets=())
    with pytest.raises(asyncpg.NotNullViolationError):
        await world.sql.execute(insert)
    again = await finish(world.database, world.adoption, targets=())
    assert again is not None
    assert again.stage == "finished"
    assert await world.value("SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'zzz_memplane%'") == 0
    found = await look(world.database, world.adoption, ())
    assert isinstance(found, State)


async def test_the_end_waits_for_the_old_application(old_world: MakeWorld) -> None:
    world = await old_world("seed", 20, quiet_seconds=30)
    with pytest.raises(SchemaError, match="--adopt"):
        await finish(world.database, world.adoption, targets=())
    await adopted(world)
    await world.sql.execute("UPDATE memplane.long_term_memory SET content = 'still here' WHERE id = 1")
    with pytest.raises(StillWriting, match="quiet"):
        await finish(world.database, world.adoption, targets=())
    assert await world.value("SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'zzz_memplane%'") == 3


async def test_a_lock_that_is_held_for_long_is_waited_for_in_short_tries(old_world: MakeWorld) -> None:
    world = await old_world("seed", 20)
    blocker = await asyncpg.connect(world.dsn)
    await blocker.execute("BEGIN; LOCK TABLE memplane.long_term_memory IN ROW EXCLUSIVE MODE")
    work = asyncio.create_task(adopted(world))
    for _ in range(3):
        await asyncio.sleep(0.3)
        began = asyncio.get_running_loop().time()
        await world.sql.execute("INSERT INTO memplane.long_term_memory (user_id, content) VALUES ('u', 'in between')")
        assert asyncio.get_running_loop().time() - began < 2
    await blocker.execute("COMMIT")
    await blocker.close()
    assert (await work).stage == "adopted"
    await finish(world.database, world.adoption, targets=())
    assert len(await check_rows(world.database)) == 18 + 3


async def test_rows_that_are_locked_during_the_backfill_are_taken_up_afterwards(old_world: MakeWorld) -> None:
    world = await old_world("renamed", 300)
    holder = await asyncpg.connect(world.dsn)
    stages: list[str] = []
    async with holder.transaction():
        work = asyncio.create_task(adopted(world, show=lambda stage, _, __: stages.append(stage)))
        # Holding a row's lock before the columns exist would hold up their transaction: wait for the backfill's start.
        while await world.value("SELECT to_regclass('memplane.adoption')") is None:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        held = await holder.fetch("SELECT id FROM memplane.long_term_memory WHERE id > 200 ORDER BY id FOR UPDATE")
        while "backfill: rows that were locked" not in stages:
            assert not work.done()
            await asyncio.sleep(0.05)
    await holder.close()
    state = await work
    assert state.done == 270
    assert len(held) == 90
    rows = await check_rows(world.database)
    assert all(row["content"] == row["body"] for row in rows)
    assert {row["version"] for row in rows} == {1}


async def test_an_abort_ends_it_between_two_batches_and_the_next_run_goes_on(old_world: MakeWorld) -> None:
    world = await old_world("seed", 1000, batch_size=100)
    signal = Signal()

    def stop(stage: str, done: int, total: int) -> None:
        if stage == "backfill" and done >= 300:
            signal.abort()

    assert await adopt(world.database, world.adoption, targets=(), signal=signal, show=stop) is None
    done = await world.value("SELECT done FROM memplane.adoption")
    assert 300 <= done < 900
    changed = world.adoption.model_copy(update={"tenant": "other"})
    with pytest.raises(SettingsError, match=r"adoption\.tenant"):
        await adopt(world.database, changed, targets=())
    stages: list[tuple[str, int]] = []
    assert (await adopted(world, show=lambda stage, done, total: stages.append((stage, done)))).done == 900
    assert stages[0] == ("backfill", done)
    await check_rows(world.database)


async def test_an_invalid_index_is_built_anew(old_world: MakeWorld) -> None:
    world = await old_world("seed", 50)
    # What a build that was interrupted leaves behind: a unique index over values that are not unique.
    with pytest.raises(asyncpg.UniqueViolationError):
        await world.sql.execute(
            "CREATE UNIQUE INDEX CONCURRENTLY long_term_memory_scope ON memplane.long_term_memory (user_id)"
            if await world.value("SELECT count(*) > count(DISTINCT user_id) FROM memplane.long_term_memory")
            else "CREATE UNIQUE INDEX CONCURRENTLY long_term_memory_scope ON memplane.long_term_memory ((1))"
        )
    invalid = "SELECT count(*) FROM pg_index WHERE NOT indisvalid"
    assert await world.value(invalid) == 1
    await adopted(world)
    assert await world.value(invalid) == 0
    definition = await world.value("SELECT indexdef FROM pg_indexes WHERE indexname = 'long_term_memory_scope'")
    assert "(tenant, user_id, id)" in definition


async def test_the_backfill_can_be_slowed_down(old_world: MakeWorld) -> None:
    world = await old_world("seed", 200, batch_size=50, rows_per_second=180)
    began = asyncio.get_running_loop().time()
    await adopted(world)
    assert asyncio.get_running_loop().time() - began > 0.9
