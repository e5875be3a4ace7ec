"""What the trigger does with each kind of statement, and what the settling job makes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import asyncpg
import pytest

from memplane.adoption.run import adopt
from memplane.adoption.settle import pending, settle
from memplane.contracts import Scope
from memplane.outbox.claim import claim
from memplane.outbox.events import Target, Task
from memplane.outbox.worker import OutboxWorker
from memplane.plugins.postgres.update import update
from memplane.plugins.postgres.write import write
from memplane.plugins.postgres.writing import Writing
from memplane.schema.migrate import check
from memplane.signal import Signal
from tests.adoption.conftest import MakeWorld, OldWorld
from tests.adoption.support import check_rows
from tests.outbox.world import DictTarget, quick, until

TARGETS = frozenset({Target.MILVUS, Target.NEO4J})
SCOPE = Scope("default", "user-1")
LTM = "memplane.long_term_memory"


@pytest.fixture
async def world(old_world: MakeWorld) -> OldWorld:
    made = await old_world("seed", 30)
    await adopt(made.database, made.adoption, targets=())
    return made


async def row(world: OldWorld, memory_id: int) -> asyncpg.Record:
    found = await world.sql.fetchrow(f"SELECT * FROM {LTM} WHERE id = $1", memory_id)
    assert found is not None
    return found


async def events(world: OldWorld, memory_id: int) -> list[tuple[Any, ...]]:
    found = await world.sql.fetch(
        "SELECT target, event_type, aggregate_version, payload ->> 'content_hash' FROM memplane.memory_outbox"
        " WHERE aggregate_id = $1 AND status = 'pending' ORDER BY target, event_type",
        memory_id,
    )
    return [tuple(one) for one in found]


async def settled(world: OldWorld) -> int:
    """Settle until nothing waits; a worker may have a row locked for a moment."""
    total = 0
    async with asyncio.timeout(15):
        while await pending(world.sql, world.database):
            total += await settle(world.database, targets=TARGETS)
    return total


async def test_an_insert_gets_events_with_its_hash(world: OldWorld) -> None:
    memory_id = await world.value(f"INSERT INTO {LTM} (user_id, content) VALUES ('user-1', 'new') RETURNING id")
    assert (await row(world, memory_id))["content_hash"] == ""
    assert await events(world, memory_id) == [], "nothing is projected without its hash"
    assert await settled(world) == 1
    digest = (await row(world, memory_id))["content_hash"]
    assert await events(world, memory_id) == [
        ("milvus", "upsert_memory_vector", 1, digest),
        ("neo4j", "upsert_memory_graph_node", 1, digest),
    ]
    await check_rows(world.database)


async def test_an_update_is_the_next_version(world: OldWorld) -> None:
    before = await row(world, 1)
    await world.sql.execute(f"UPDATE {LTM} SET content = 'other', importance = 0.25 WHERE id = 1")
    marked = await row(world, 1)
    assert (marked["version"], marked["content_hash"], marked["tokens_version"]) == (2, "", 0)
    assert marked["updated_at"] > before["updated_at"]
    assert marked["changed_xid"] > before["changed_xid"]
    await settled(world)
    after = await row(world, 1)
    assert [event[2:] for event in await events(world, 1)] == [(2, after["content_hash"])] * 2
    await world.sql.execute(f"UPDATE {LTM} SET content = content WHERE id = 1")
    assert (await row(world, 1))["version"] == 2, "what changes nothing is no version"
    await check_rows(world.database)


async def test_a_second_change_before_the_first_is_settled(world: OldWorld) -> None:
    for text in ("one", "two", "three"):
        await world.sql.execute(f"UPDATE {LTM} SET content = $1 WHERE id = 1", text)
    assert await settled(world) == 1
    assert (await row(world, 1))["version"] == 4
    assert {event[2] for event in await events(world, 1)} == {4}
    await check_rows(world.database)


async def test_a_delete_leaves_events_and_an_id_that_comes_back_goes_on_counting(world: OldWorld) -> None:
    await world.sql.execute(f"UPDATE {LTM} SET content = 'other' WHERE id = 1")
    assert await world.sql.execute(f"DELETE FROM {LTM} WHERE id = 1") == "DELETE 1"
    assert await world.value(f"SELECT count(*) FROM {LTM} WHERE id = 1") == 0
    await settled(world)
    assert [event[:3] for event in await events(world, 1)] == [
        ("milvus", "delete_memory_vector", 3),
        ("neo4j", "delete_memory_graph_node", 3),
    ]
    await world.sql.execute(f"INSERT INTO {LTM} (id, user_id, content) VALUES (1, 'user-1', 'back')")
    assert (await row(world, 1))["version"] == 4
    await settled(world)
    assert [event[:3] for event in await events(world, 1)] == [
        ("milvus", "upsert_memory_vector", 4),
        ("neo4j", "upsert_memory_graph_node", 4),
    ]
    await check_rows(world.database)


async def test_an_upsert_of_the_old_application_works(world: OldWorld) -> None:
    upsert = (
        f"INSERT INTO {LTM} (id, user_id, content) VALUES ($1, 'user-1', $2)"
        " ON CONFLICT (id) DO UPDATE SET content = excluded.content"
    )
    for memory_id in (1, 5000):
        for text in ("a", "b"):
            await world.sql.execute(upsert, memory_id, text)
    assert [(await row(world, memory_id))["version"] for memory_id in (1, 5000)] == [3, 2]
    await settled(world)
    await check_rows(world.database)


async def test_a_truncate_is_a_delete_of_all(world: OldWorld) -> None:
    await world.sql.execute(f"TRUNCATE {LTM}")
    assert await settled(world) == 27
    count = "SELECT count(*) FROM memplane.memory_outbox WHERE event_type = 'delete_memory_vector'"
    assert await world.value(count) == 27


async def test_a_copy_is_captured(world: OldWorld) -> None:
    records = [("user-1", f"copied {number}") for number in range(500)]
    await world.sql.copy_records_to_table(
        "long_term_memory", schema_name="memplane", records=records, columns=["user_id", "content"]
    )
    assert await settled(world) == 500
    await check_rows(world.database)


async def test_a_rolled_back_change_leaves_nothing(world: OldWorld) -> None:
    await world.sql.execute("BEGIN")
    await world.sql.execute(f"DELETE FROM {LTM} WHERE id = 1")
    await world.sql.execute(f"UPDATE {LTM} SET content = 'x' WHERE id = 2")
    await world.sql.execute("ROLLBACK")
    assert await settled(world) == 0
    assert (await row(world, 2))["version"] == 1


@pytest.mark.parametrize("hard", [True, False])
async def test_a_deleted_memory_takes_its_edges_along(old_world: MakeWorld, hard: bool) -> None:
    """Memplane has related memories of the old table, then the old application deletes one of them."""
    world = await old_world("renamed", 30)
    await adopt(world.database, world.adoption, targets=())
    writing, scope = Writing(world.database, TARGETS), Scope("acme", "2")
    related = {"relations": [{"type": "about", "target": "2"}]}
    made = await write(writing, scope, [{"content": "points to 2", "metadata": related}], None)
    source = int(made[0]["id"])
    await update(
        writing, scope, [{"id": "2", "metadata": {"relations": [{"type": "from", "target": str(source)}]}}], None
    )
    if hard:
        await world.sql.execute(f"DELETE FROM {LTM} WHERE id = 2")
    else:
        await world.sql.execute(f"UPDATE {LTM} SET is_deleted = TRUE WHERE id = 2")
    await settled(world)
    assert await world.value("SELECT count(*) FROM memplane.memory_edge WHERE deleted_at IS NULL") == 0
    assert (await row(world, source))["edges_version"] == 2
    assert ("neo4j", "upsert_memory_graph_edges", 1) in [event[:3] for event in await events(world, source)]
    assert {event[1] for event in await events(world, 2)} == {
        "delete_memory_vector", "delete_memory_graph_node", "delete_memory_graph_edges",
    }  # fmt: skip
    await check_rows(world.database)


async def test_a_soft_delete_is_a_tombstone_and_can_be_taken_back(old_world: MakeWorld) -> None:
    world = await old_world("renamed", 30)
    await adopt(world.database, world.adoption, targets=())
    await world.sql.execute(f"UPDATE {LTM} SET is_deleted = TRUE WHERE id = 2")
    await settled(world)
    assert (await row(world, 2))["deleted_at"] is not None
    assert {event[1] for event in await events(world, 2)} == {"delete_memory_vector", "delete_memory_graph_node"}
    await world.sql.execute(f"UPDATE {LTM} SET is_deleted = FALSE WHERE id = 2")
    await settled(world)
    assert (await row(world, 2))["deleted_at"] is None
    assert {event[1] for event in await events(world, 2)} == {"upsert_memory_vector", "upsert_memory_graph_node"}
    await check_rows(world.database)


async def test_an_event_from_before_is_not_projected_until_the_change_is_hashed(world: OldWorld) -> None:
    """Memplane's own event waits, then the old application changes the row: the worker must not send a wrong hash."""
    assert await check(world.database) > 0
    writing = Writing(world.database, frozenset({Target.MILVUS}))
    await update(writing, SCOPE, [{"id": "1", "content": "by memplane"}], None)
    await world.sql.execute(f"UPDATE {LTM} SET content = 'by the old one' WHERE id = 1")
    target, projected = DictTarget(), []

    async def note(tasks: Sequence[Task]) -> None:
        projected.extend((task.truth.version, task.truth.content_hash) for task in tasks)

    async def finished() -> bool:
        unfinished = "SELECT count(*) FROM memplane.memory_outbox WHERE status <> 'processed' AND target = 'milvus'"
        return bool(await world.value(unfinished) == 0)

    target.before = note
    signal = Signal()
    work = asyncio.create_task(OutboxWorker(world.database, target, quick()).run(signal))
    await asyncio.sleep(0.5)
    assert projected == []
    await settled(world)
    await until(finished)
    signal.abort()
    await work
    assert projected == [(3, (await row(world, 1))["content_hash"])]


async def test_rows_that_somebody_has_locked_are_left_for_later_and_nobody_deadlocks(world: OldWorld) -> None:
    await world.sql.execute(f"UPDATE {LTM} SET content = content || '!' WHERE id < 10")
    other = await asyncpg.connect(world.dsn)
    async with other.transaction():
        await other.execute(f"SELECT FROM {LTM} WHERE id = 5 FOR UPDATE")
        assert await settle(world.database, targets=TARGETS) == 8
        assert await settle(world.database, targets=TARGETS) == 0
        assert await pending(world.sql, world.database) == 1
    await other.close()
    assert await settled(world) == 1
    await check_rows(world.database)


async def test_a_claim_sees_no_event_of_a_marked_row(world: OldWorld) -> None:
    await world.sql.execute(f"UPDATE {LTM} SET content = content || '!'")
    assert await claim(world.database, Target.MILVUS, worker="w", limit=10, lease_seconds=5) == []
