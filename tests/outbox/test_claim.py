"""A claim's life, one step at a time: what can be claimed, and every way a claim ends."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from uuid import uuid4

import pytest

from memplane.outbox.claim import claim, complete, renew
from memplane.outbox.events import Event, Family, Target
from memplane.outbox.putback import LEASE_RAN_OUT, MAX_ERROR_LENGTH, Failure, Fate, fail, give_back, reclaim_expired
from memplane.outbox.retry import RetryPolicy
from memplane.schema.database import Database
from tests.outbox.world import (
    MILVUS,
    NEO4J,
    change,
    change_on,
    claim_some,
    create,
    execute,
    expire_leases,
    make_due,
    rows,
    statuses,
)

POLICY = RetryPolicy(base_seconds=100, max_attempts=3)


def failures(events: list[Event], reason: str = "no") -> list[Failure]:
    return [Failure(event, reason) for event in events]


async def test_a_claim_takes_the_oldest_due_events_with_a_token_and_a_lease(database: Database) -> None:
    ids = await create(database, 5)
    events = await claim(database, Target.MILVUS, worker="w1", limit=3, lease_seconds=30)
    assert sorted(event.memory_id for event in events) == ids[:3]
    assert len({event.claim_token for event in events}) == 1
    [event] = [event for event in events if event.memory_id == ids[0]]
    assert event.payload["content_hash"] == "h1"
    assert (event.family, event.target, event.attempts, event.repair) == (Family.NODE, Target.MILVUS, 0, False)
    for row in await rows(database, "status = 'processing'"):
        assert row["locked_by"] == "w1"
        assert row["claim_token"] == event.claim_token
        assert row["locked_until"] - row["locked_at"] == timedelta(seconds=30)
    assert len(await claim_some(database)) == 2
    assert await claim_some(database) == []
    assert await claim_some(database, Target.NEO4J) == []


async def test_targets_do_not_see_each_other(database: Database) -> None:
    [memory] = await create(database, targets=MILVUS | NEO4J)
    [vector] = await claim_some(database, Target.MILVUS)
    [node] = await claim_some(database, Target.NEO4J)
    assert vector.memory_id == node.memory_id == memory


async def test_completion_is_fenced_and_reports_the_database_time(database: Database) -> None:
    await create(database, 2)
    events = await claim_some(database)
    stranger = [Event(**{**_fields(events[0]), "claim_token": uuid4()})]
    assert (await complete(database, stranger)).ids == frozenset()
    done = await complete(database, [*stranger, *events])
    assert done.ids == {event.id for event in events}
    assert done.at is not None
    assert (await complete(database, events)).ids == frozenset()
    for row in await rows(database):
        assert (row["status"], row["processed_at"], row["claim_token"]) == ("processed", done.at, None)
        assert not row["shadow"]


def _fields(event: Event) -> dict[str, object]:
    return {name: getattr(event, name) for name in Event.__slots__}  # type: ignore[attr-defined]


async def test_renewal_extends_only_what_is_ours(database: Database) -> None:
    await create(database, 2)
    first, second = await claim_some(database, lease=1)
    await complete(database, [second])
    assert await renew(database, [first, second], lease_seconds=500) == {first.id}
    [row] = await rows(database, "status = 'processing'")
    assert row["locked_until"] - row["locked_at"] > timedelta(seconds=490)


async def test_shadow_completion_is_marked(database: Database) -> None:
    await create(database)
    await complete(database, await claim_some(database), shadow=True)
    assert [row["shadow"] for row in await rows(database)] == [True]


async def test_a_failure_charges_and_waits_and_then_is_dead(database: Database) -> None:
    await create(database)
    for attempts in (1, 2):
        [event] = await claim_some(database)
        assert await fail(database, failures([event], "x" * 5000), POLICY) == {event.id: Fate.PENDING}
        [row] = await rows(database)
        assert row["attempts"] == attempts
        assert row["last_error"] == "x" * MAX_ERROR_LENGTH
        assert row["available_at"] - row["created_at"] > timedelta(seconds=49)
        assert row["locked_until"] is None
        assert await claim_some(database) == [], "its retry is in the future"
        await make_due(database)
    [event] = await claim_some(database)
    assert event.attempts == 2
    assert await fail(database, failures([event]), POLICY) == {event.id: Fate.DEAD}
    assert await statuses(database) == {"dead": 1}
    assert await claim_some(database) == []


async def test_a_dead_event_blocks_nothing(database: Database) -> None:
    [memory] = await create(database)
    await fail(database, failures(await claim_some(database)), RetryPolicy(max_attempts=1))
    await change(database, [memory])
    [event] = await claim_some(database)
    assert event.version == 2


async def test_a_future_retry_does_not_block_a_newer_event(database: Database) -> None:
    [memory] = await create(database)
    await fail(database, failures(await claim_some(database)), POLICY)
    await change(database, [memory])
    [event] = await claim_some(database)
    assert (event.version, event.attempts) == (2, 0)
    assert await statuses(database) == {"processed": 1, "processing": 1}


@pytest.mark.parametrize("way", ["give_back", "fail", "reclaim", "dead"])
async def test_what_is_put_back_is_superseded_by_a_newer_event(database: Database, way: str) -> None:
    [memory] = await create(database)
    events = await claim_some(database)
    await change(database, [memory])
    if way == "give_back":
        fates = await give_back(database, events)
    elif way == "reclaim":
        await expire_leases(database)
        fates = await reclaim_expired(database, Target.MILVUS, POLICY)
    else:
        fates = await fail(database, failures(events), POLICY if way == "fail" else RetryPolicy(max_attempts=1))
    assert fates == {events[0].id: Fate.SUPERSEDED}
    old, new = await rows(database)
    assert (old["status"], old["superseded_by"]) == ("processed", new["id"])
    assert new["status"] == "pending"


async def test_give_back_is_not_charged(database: Database) -> None:
    await create(database)
    events = await claim_some(database)
    assert await give_back(database, events) == {events[0].id: Fate.PENDING}
    [again] = await claim_some(database)
    assert (again.id, again.attempts, again.suspect) == (events[0].id, 0, False)
    assert await give_back(database, events) == {}, "the first claim is over"
    assert await give_back(database, [again], delay_seconds=60) == {again.id: Fate.PENDING}
    assert await claim_some(database) == []


async def test_an_expired_batch_comes_back_one_by_one_and_only_then_is_charged(database: Database) -> None:
    await create(database, 3)
    events = await claim_some(database)
    assert await reclaim_expired(database, Target.MILVUS, POLICY) == {}, "the lease still runs"
    await expire_leases(database)
    assert set((await reclaim_expired(database, Target.MILVUS, POLICY)).values()) == {Fate.PENDING}
    assert (await complete(database, events)).ids == frozenset()
    for row in await rows(database):
        assert (row["status"], row["suspect"], row["attempts"]) == ("pending", True, 0)
    [alone] = await claim_some(database)
    assert alone.suspect
    await complete(database, [alone])
    [guilty] = await claim_some(database)
    await expire_leases(database)
    assert await reclaim_expired(database, Target.MILVUS, POLICY) == {guilty.id: Fate.PENDING}
    [row] = await rows(database, "id = $1", guilty.id)
    assert (row["attempts"], row["last_error"], row["suspect"]) == (1, LEASE_RAN_OUT, True)
    assert len(await claim_some(database)) == 1, "the third, alone"
    await expire_leases(database)
    await execute(database, "UPDATE {schema}.memory_outbox SET attempts = 2 WHERE status = 'processing'")
    assert set((await reclaim_expired(database, Target.MILVUS, POLICY)).values()) == {Fate.DEAD}


async def test_a_suspect_waits_for_its_turn_and_the_innocent_travel_without_it(database: Database) -> None:
    await create(database, 3)
    await execute(
        database,
        "UPDATE {schema}.memory_outbox SET suspect = TRUE WHERE id = (SELECT max(id) FROM {schema}.memory_outbox)",
    )
    first = await claim_some(database)
    assert [event.suspect for event in first] == [False, False]
    [suspect] = await claim_some(database)
    assert suspect.suspect


async def test_a_charged_suspect_that_answered_is_cleared(database: Database) -> None:
    await create(database)
    await execute(database, "UPDATE {schema}.memory_outbox SET suspect = TRUE")
    await fail(database, failures(await claim_some(database)), POLICY)
    assert [row["suspect"] for row in await rows(database)] == [False]


async def test_of_a_memory_with_two_families_one_event_is_in_flight(database: Database) -> None:
    ids = await create(database, 3, targets=NEO4J, edges=True)
    first = await claim_some(database, Target.NEO4J)
    assert sorted(event.memory_id for event in first) == ids
    assert await claim_some(database, Target.NEO4J) == []
    await complete(database, first)
    second = await claim_some(database, Target.NEO4J)
    assert sorted(event.memory_id for event in second) == ids
    assert {event.family for event in first} | {event.family for event in second} == {Family.NODE, Family.EDGES}


async def test_a_sibling_in_back_off_blocks_nothing(database: Database) -> None:
    [memory] = await create(database, targets=NEO4J)
    await fail(database, failures(await claim_some(database, Target.NEO4J)), POLICY)
    await change(database, [memory], targets=NEO4J, node=False, edges=True)
    [edges] = await claim_some(database, Target.NEO4J)
    assert edges.family is Family.EDGES


@pytest.mark.parametrize("target", [Target.MILVUS, Target.NEO4J])
async def test_a_claim_does_not_wait_for_a_locked_event(database: Database, target: Target) -> None:
    locked, free = await create(database, 2, targets=frozenset({target}), edges=True)
    async with database.transaction() as connection:
        await connection.execute(
            database.sql("SELECT FROM {schema}.memory_outbox WHERE aggregate_id = $1 AND family = 'node' FOR UPDATE"),
            locked,
        )
        async with asyncio.timeout(5):
            events = await claim_some(database, target)
    assert {event.memory_id for event in events} == {free}, "the sibling of a locked event is left alone too"


@pytest.mark.parametrize("target", [Target.MILVUS, Target.NEO4J])
async def test_a_writer_waits_for_a_claim_in_progress_and_its_event_for_the_claimed_one(
    database: Database, target: Target
) -> None:
    """The interleaving on which the safety of the claim rests, step by step."""
    targets = frozenset({target})
    [memory] = await create(database, targets=targets)
    async with database.transaction() as claimer:
        await claimer.execute(
            database.sql(
                "UPDATE {schema}.memory_outbox SET status = 'processing', claim_token = gen_random_uuid(), "
                "locked_until = now() + interval '1 minute' WHERE id = ("
                "SELECT id FROM {schema}.memory_outbox WHERE status = 'pending' FOR UPDATE SKIP LOCKED)"
            )
        )
        writer = asyncio.create_task(change(database, [memory], targets=targets))
        done, _ = await asyncio.wait({writer}, timeout=0.3)
        assert not done, "the writer waits for the claim"
        assert await claim_some(database, target) == []
    await writer
    assert [row["status"] for row in await rows(database)] == ["processing", "pending"]
    assert await claim_some(database, target) == []


async def test_a_claim_skips_what_an_unfinished_writer_has_superseded(database: Database) -> None:
    [memory] = await create(database)
    async with database.transaction() as writer:
        await change_on(writer, database, [memory])
        assert await claim_some(database) == []
    [event] = await claim_some(database)
    assert event.version == 2


async def test_putting_back_waits_for_the_writer_of_the_memory(database: Database) -> None:
    [memory] = await create(database)
    events = await claim_some(database)
    async with database.transaction() as writer:
        await change_on(writer, database, [memory])
        returning = asyncio.create_task(give_back(database, events))
        done, _ = await asyncio.wait({returning}, timeout=0.3)
        assert not done
    assert await returning == {events[0].id: Fate.SUPERSEDED}


async def test_claims_stay_fast_whatever_the_statistics_say(database: Database) -> None:
    """Analyzed while empty, then 20,000 events, 2,000 of them in flight."""
    await execute(database, "ANALYZE {schema}.memory_outbox")
    await create(database, 20_000, targets=MILVUS | NEO4J)
    loop = asyncio.get_running_loop()
    for target in (Target.MILVUS, Target.NEO4J):
        for _ in range(10):
            await claim_some(database, target, limit=200)
        started = loop.time()
        for _ in range(5):
            events = await claim_some(database, target, limit=200)
            assert len(events) == 200
            await complete(database, events)
        assert loop.time() - started < 2, "5 batches of 200"
