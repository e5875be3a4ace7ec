"""Events enter with the change, once per (target, memory, family)."""

from __future__ import annotations

import asyncio
import json
from uuid import uuid4

import pytest

from memplane.outbox.channel import MAX_CHANNEL_BYTES, outbox_channel
from memplane.outbox.claim import complete
from memplane.outbox.enqueue import Change, Repair, enqueue, enqueue_repairs
from memplane.outbox.events import Family, Target
from memplane.schema.database import Database
from memplane.settings import PostgresSettings
from tests.outbox.world import ALL_TARGETS, MILVUS, NEO4J, change, claim_some, create, execute, rows


async def _enqueue(database: Database, *changes: Change, targets: frozenset[Target] = ALL_TARGETS) -> None:
    async with database.transaction() as connection:
        await enqueue(connection, database, changes, targets=targets, traceparent="00-aa-bb-01")


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        (
            "upsert",
            {"upsert_memory_vector", "upsert_memory_graph_node", "upsert_memory_graph_edges", "invalidate_ltm_cache"},
        ),
        (
            "delete",
            {"delete_memory_vector", "delete_memory_graph_node", "delete_memory_graph_edges", "invalidate_ltm_cache"},
        ),
    ],
)
async def test_each_target_gets_its_event_types(database: Database, operation: str, expected: set[str]) -> None:
    await _enqueue(database, Change(7, "t", "u", 3, "abc", operation, edges=True, edges_version=2))  # type: ignore[arg-type]
    found = await rows(database)
    assert {row["event_type"] for row in found} == expected
    assert {row["family"] for row in found if row["target"] == "neo4j"} == {"node", "edges"}
    for row in found:
        assert (row["aggregate_id"], row["tenant"], row["user_id"], row["aggregate_version"]) == (7, "t", "u", 3)
        assert (row["status"], row["attempts"], row["traceparent"]) == ("pending", 0, "00-aa-bb-01")
        payload = {"memory_id": 7, "version": 3, "content_hash": "abc", "operation": operation}
        assert json.loads(row["payload"]) == payload | ({"edges_version": 2} if row["family"] == "edges" else {})


async def test_only_enabled_targets_and_asked_families(database: Database) -> None:
    await _enqueue(database, Change(1, "t", "u", 1, "h", "upsert"), targets=MILVUS)
    await _enqueue(database, Change(2, "t", "u", 1, "h", "upsert", node=False, edges=True))
    await _enqueue(database, Change(3, "t", "u", 1, "h", "upsert"), targets=frozenset())
    await _enqueue(database)
    assert [(row["aggregate_id"], row["event_type"]) for row in await rows(database)] == [
        (1, "upsert_memory_vector"),
        (2, "upsert_memory_graph_edges"),
    ]


async def test_a_newer_event_supersedes_the_waiting_one_and_only_it(database: Database) -> None:
    first, other = await create(database, 2, targets=NEO4J, edges=True)
    await change(database, [first], targets=NEO4J)
    found = await rows(database, "aggregate_id = $1 AND family = 'node'", first)
    assert [row["status"] for row in found] == ["processed", "pending"]
    assert found[0]["superseded_by"] == found[1]["id"]
    assert found[0]["processed_at"] is not None
    edges = await rows(database, "aggregate_id = $1 AND family = 'edges'", first)
    assert [row["status"] for row in edges] == ["pending"]
    assert {row["status"] for row in await rows(database, "aggregate_id = $1", other)} == {"pending"}


async def test_two_changes_in_one_transaction_leave_one_pending_event(database: Database) -> None:
    await _enqueue(
        database,
        Change(1, "t", "u", 1, "h", "upsert", edges=True, edges_version=4),
        Change(1, "t", "u", 2, "h2", "delete"),
    )
    found = await rows(database, "target = 'neo4j'")
    assert [(row["aggregate_version"], row["event_type"]) for row in found] == [
        (2, "delete_memory_graph_node"),
        (2, "delete_memory_graph_edges"),
    ]


async def test_events_vanish_with_the_transaction(database: Database) -> None:
    async def fails_after_enqueueing() -> None:
        async with database.transaction() as connection:
            await enqueue(connection, database, [Change(1, "t", "u", 1, "h", "upsert")], targets=ALL_TARGETS)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await fails_after_enqueueing()
    assert await rows(database) == []


async def test_an_event_in_flight_is_not_superseded_and_the_newer_one_waits(database: Database) -> None:
    [memory] = await create(database)
    [claimed] = await claim_some(database)
    await change(database, [memory])
    assert [row["status"] for row in await rows(database)] == ["processing", "pending"]
    assert await claim_some(database) == []
    await complete(database, [claimed])
    [second] = await claim_some(database)
    assert second.version == 2


async def test_a_commit_notifies_each_target_once(database: Database) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()
    connection = await database.connect_direct()
    try:
        await connection.add_listener(outbox_channel(database), lambda *call: heard.put_nowait(str(call[3])))
        await create(database, 5, targets=ALL_TARGETS)
        async with asyncio.timeout(5):
            targets = [await heard.get() for _ in range(3)]
        await connection.execute("SELECT 1")
    finally:
        await connection.close()
    assert sorted(targets) == ["ltm_cache", "milvus", "neo4j"]
    assert heard.empty()


async def test_a_writing_transaction_notifies_nobody_itself(database: Database) -> None:
    """A commit that notifies waits for all others that do; so the hint must not be part of it."""
    heard: asyncio.Queue[str] = asyncio.Queue()
    connection = await database.connect_direct()
    try:
        await connection.add_listener(outbox_channel(database), lambda *call: heard.put_nowait(str(call[3])))
        writer = await asyncio.gather(*(create(database) for _ in range(40)))
        async with asyncio.timeout(5):
            assert await heard.get() == "milvus"
        await database.close()
        await connection.execute("SELECT 1")
    finally:
        await connection.close()
    assert len(writer) == 40
    assert 1 + heard.qsize() < 40, "a burst of commits leaves few notifications"


def test_the_channel_of_a_long_schema_name_fits_and_differs() -> None:
    names = [
        outbox_channel(Database(PostgresSettings(dsn="postgresql://h/d", schema_name=schema)))  # type: ignore[arg-type]
        for schema in ("memplane", "a" * 63, "a" * 62 + "b")
    ]
    assert len(set(names)) == 3
    assert all(len(name.encode()) <= MAX_CHANNEL_BYTES for name in names)


def _repair(memory_id: int, version: int = 1, **changes: object) -> Repair:
    values: dict[str, object] = {
        "target": Target.MILVUS, "memory_id": memory_id, "tenant": "t", "user_id": "u", "expected_version": version,
        "operation": "upsert", "family": Family.NODE,
    }  # fmt: skip
    return Repair(**{**values, **changes})  # type: ignore[arg-type]


async def _repairs(database: Database, *repairs: Repair) -> int:
    async with database.transaction() as connection:
        return await enqueue_repairs(connection, database, repairs)


async def test_a_repair_is_unique_while_unfinished(database: Database) -> None:
    [memory] = await create(database)
    await complete(database, await claim_some(database))
    assert await _repairs(database, _repair(memory), _repair(memory)) == 1
    assert await _repairs(database, _repair(memory)) == 0
    [claimed] = await claim_some(database)
    assert claimed.repair
    assert claimed.event_type == "upsert_memory_vector"
    assert await _repairs(database, _repair(memory)) == 0, "still processing"
    await complete(database, [claimed])
    assert await _repairs(database, _repair(memory)) == 1
    [row] = await rows(database, "status = 'pending'")
    assert row["repair_key"] == f"milvus:{memory}:1:upsert:node:repair"


async def test_concurrent_repairs_insert_one(database: Database) -> None:
    [memory] = await create(database)
    await complete(database, await claim_some(database))
    for candidate in (memory, 999_999):
        counts = await asyncio.gather(*(_repairs(database, _repair(candidate)) for _ in range(12)))
        assert sum(counts) == 1
    assert len(await rows(database, "status = 'pending'")) == 2


async def test_a_repair_supersedes_a_waiting_event_and_is_superseded_by_a_change(database: Database) -> None:
    [memory] = await create(database)
    assert await _repairs(database, _repair(memory)) == 1
    await change(database, [memory])
    found = await rows(database)
    assert [row["status"] for row in found] == ["processed", "processed", "pending"]
    assert [row["superseded_by"] for row in found] == [found[1]["id"], found[2]["id"], None]


async def test_a_late_repair_is_inserted_while_another_repair_is_in_flight(database: Database) -> None:
    [memory] = await create(database)
    await complete(database, await claim_some(database))
    await _repairs(database, _repair(memory))
    [in_flight] = await claim_some(database)
    late = _repair(memory, late_claim=uuid4())
    assert await _repairs(database, late) == 1
    assert await _repairs(database, late) == 0
    await complete(database, [in_flight])
    [again] = await claim_some(database)
    assert again.repair


async def test_repairs_of_several_families_and_operations(database: Database) -> None:
    count = await _repairs(
        database,
        _repair(5, target=Target.NEO4J),
        _repair(5, target=Target.NEO4J, family=Family.EDGES, operation="delete"),
        _repair(4),
    )
    assert count == 3
    assert {row["event_type"] for row in await rows(database)} == {
        "upsert_memory_graph_node",
        "delete_memory_graph_edges",
        "upsert_memory_vector",
    }
    with pytest.raises(ValueError, match="holds no edges"):
        await _repairs(database, _repair(6, family=Family.EDGES))


async def test_superseding_stays_fast_whatever_the_statistics_say(database: Database) -> None:
    """Analyzed while empty, filled afterwards: the plan must still probe one row per memory."""
    await execute(database, "ANALYZE {schema}.memory_outbox")
    ids = await create(database, 20_000)
    loop = asyncio.get_running_loop()
    started = loop.time()
    for start in range(0, 2_000, 100):
        await change(database, ids[start : start + 100])
    assert loop.time() - started < 5, "20 batches of 100"
