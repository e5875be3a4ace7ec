"""The worker on a real database and a target made of a dict: trouble of every kind, ending in the truth."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from memplane.errors import IdentityError, SettingsError
from memplane.outbox.events import Target, Task, Verdict
from memplane.outbox.metrics import Metrics
from memplane.outbox.probes import Point
from memplane.outbox.worker import OutboxWorker
from memplane.schema.database import Database
from memplane.settings import OutboxSettings
from memplane.signal import Signal
from tests.outbox.world import (
    NEO4J,
    DictTarget,
    all_done,
    change,
    create,
    execute,
    expire_leases,
    quick,
    rows,
    statuses,
    until,
)


@asynccontextmanager
async def running(
    database: Database, target: DictTarget, settings: OutboxSettings | None = None, **options: Any
) -> AsyncIterator[OutboxWorker]:
    """A worker that runs inside the block and is drained at its end."""
    worker = OutboxWorker(database, target, settings or quick(), **options)
    signal = Signal()
    run = asyncio.create_task(worker.run(signal))
    try:
        yield worker
    finally:
        signal.abort()
        async with asyncio.timeout(10):
            await run


async def done(database: Database, seconds: float = 15) -> None:
    await until(lambda: all_done(database), seconds)


async def test_everything_written_before_and_during_is_projected(database: Database) -> None:
    before = await create(database, 120)
    target = DictTarget()
    async with running(database, target) as worker:
        during = await create(database, 30)
        await change(database, before[:10])
        await change(database, before[10:12], operation="delete")
        await done(database)
        assert worker.total.processed == worker.total.claimed - worker.total.lost
    expected = dict.fromkeys(before + during, 1) | dict.fromkeys(before[:10], 2)
    assert target.held == {id_: version for id_, version in expected.items() if id_ not in before[10:12]}
    assert target.closed


async def test_nodes_and_edges_of_one_memory_follow_each_other(database: Database) -> None:
    ids = await create(database, 20, targets=NEO4J, edges=True)
    target = DictTarget(Target.NEO4J)
    loop = asyncio.get_running_loop()
    started = loop.time()
    async with running(database, target, quick(poll_seconds=30)):
        await done(database)
    assert loop.time() - started < 10, "the end of a batch wakes the worker for what it held back"
    assert sorted(id_ for call in target.calls for id_ in call) == sorted(ids * 2)


async def test_several_workers_share_a_backlog(database: Database) -> None:
    ids = await create(database, 400)
    targets = [DictTarget() for _ in range(3)]
    async with running(database, targets[0]), running(database, targets[1]), running(database, targets[2]):
        await done(database)
    assert sorted(id_ for target in targets for call in target.calls for id_ in call) == ids


async def test_a_poisonous_event_dies_alone(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    ids = await create(database, 40)
    target, registry = DictTarget(), CollectorRegistry()
    target.poison = {ids[7]}
    async with running(database, target, quick(max_attempts=3), metrics=Metrics(registry)):
        await until(lambda: _is(database, {"processed": 39, "dead": 1}))
    [dead] = await rows(database, "status = 'dead'")
    assert (dead["aggregate_id"], dead["attempts"], dead["last_error"]) == (ids[7], 3, "RuntimeError")
    assert registry.get_sample_value("memory_outbox_retry_total", {"target": "milvus"}) == 3
    [record] = [record for record in caplog.records if getattr(record, "outcome", "") == "dead"]
    assert record.levelno == logging.ERROR
    for name in ("event_id", "memory_id", "user_id", "version", "target", "attempts", "trace_id"):
        assert hasattr(record, name)
    assert "password" not in caplog.text


async def _is(database: Database, wanted: dict[str, int]) -> bool:
    return await statuses(database) == wanted


async def test_an_unhealthy_target_costs_no_attempts_and_is_probed_by_health_calls(database: Database) -> None:
    await create(database, 60)
    target, registry = DictTarget(), CollectorRegistry()
    async with running(database, target, metrics=Metrics(registry)):
        await done(database)
        target.available = False
        ids = await create(database, 60)
        await until(lambda: _probed(target, 3))
        await until(lambda: _is(database, {"processed": 60, "pending": 60}))
        calls, probes = len(target.calls), target.health_calls
        await until(lambda: _probed(target, probes + 3))
        assert len(target.calls) == calls, "nothing is claimed while the breaker is open"
        assert registry.get_sample_value("memory_projection_consecutive_failures", {"target": "milvus"}) >= 1
        target.available = True
        await done(database)
        assert registry.get_sample_value("memory_projection_consecutive_failures", {"target": "milvus"}) == 0
    assert all(row["attempts"] == 0 for row in await rows(database))
    assert set(ids) <= set(target.held)


async def _probed(target: DictTarget, times: int) -> bool:
    return target.health_calls >= times


async def test_a_target_that_is_away_at_the_start_is_waited_for(database: Database) -> None:
    await create(database, 3)
    target = DictTarget()
    target.available = False
    async with running(database, target):
        await until(lambda: _started(target, 2))
        target.available = True
        await done(database)


async def _started(target: DictTarget, times: int) -> bool:
    return target.starts >= times


async def test_a_foreign_target_is_refused(database: Database) -> None:
    target = DictTarget()

    async def foreign() -> None:
        raise IdentityError("belongs to another backend")

    target.start = foreign  # type: ignore[method-assign]
    with pytest.raises(IdentityError):
        await OutboxWorker(database, target, quick()).run(Signal())


async def test_a_late_worker_changes_nothing_and_orders_a_repair(database: Database) -> None:
    """It wakes up after its lease has been given to another, which has projected a newer version."""
    [memory] = await create(database)
    slow, fast = DictTarget(), DictTarget()
    fast.held = slow.held
    called, resume = asyncio.Event(), asyncio.Event()

    async def sleep_over_the_lease(tasks: Sequence[Task]) -> None:
        called.set()
        await resume.wait()

    slow.before = sleep_over_the_lease
    async with running(database, slow, quick(lease_seconds=60, renew_seconds=30, call_timeout=30)) as late:
        await called.wait()
        slow.before = None
        await execute(
            database, "UPDATE {schema}.memory_outbox SET locked_until = now() - interval '1 s', suspect = TRUE"
        )
        await change(database, [memory])
        async with running(database, fast):
            await done(database)
            assert fast.held == {memory: 2}
            slow.held[memory] = 1
            resume.set()
            await until(lambda: _lost(late, 1))
            await done(database)
        assert late.total.processed in {0, 1}
    assert fast.held == {memory: 2}
    [repair] = await rows(database, "repair_key IS NOT NULL")
    assert ":late:" in repair["repair_key"]


async def test_what_was_lost_between_two_calls_is_repaired_too(database: Database) -> None:
    """A call that failed as a whole may have written a part; what is lost before the next call gets its repair."""
    first, second = await create(database, 2)
    target = DictTarget()
    target.refuse = {first}

    async def lose_the_second(tasks: Sequence[Task]) -> None:
        target.before = None
        await execute(
            database,
            "UPDATE {schema}.memory_outbox SET claim_token = gen_random_uuid() WHERE aggregate_id = $1",
            second,
        )
        # The lease notices at its next renewal.
        await asyncio.sleep(0.5)

    target.before = lose_the_second
    async with running(database, target, quick(lease_seconds=2, renew_seconds=0.2)) as worker:
        await until(lambda: _lost(worker, 1))
        await until(lambda: _repaired(database))
    [repair] = await rows(database, "repair_key IS NOT NULL")
    assert (repair["aggregate_id"], ":late:" in repair["repair_key"]) == (second, True)


async def _repaired(database: Database) -> bool:
    return bool(await rows(database, "repair_key IS NOT NULL"))


async def _lost(worker: OutboxWorker, count: int) -> bool:
    return worker.total.lost >= count


async def test_a_batch_that_takes_longer_than_its_lease_keeps_it(database: Database) -> None:
    """Five calls of 0.6 s, because one event is poisonous: the lease of 2 s is renewed, nobody else gets them."""
    ids = await create(database, 4)
    target, other = DictTarget(), DictTarget()
    target.poison = {ids[0]}

    async def take_a_while(tasks: Sequence[Task]) -> None:
        await asyncio.sleep(0.6)

    target.before = take_a_while
    settings = quick(lease_seconds=2, renew_seconds=0.3, call_timeout=1.5, max_attempts=1)
    async with running(database, target, settings):
        await until(lambda: _called(target, 1))
        async with running(database, other, settings):
            await until(lambda: _is(database, {"processed": 3, "dead": 1}))
    assert not any(row["suspect"] for row in await rows(database))
    assert other.calls == []


async def _called(target: DictTarget, times: int) -> bool:
    return len(target.calls) >= times


async def test_a_killed_worker_loses_nothing(database: Database) -> None:
    """Its task is cancelled in the middle of calls, as if the process had gone: the leases bring the events back."""
    ids = await create(database, 30)
    stuck = DictTarget()
    stuck.hang = set(ids)
    worker = OutboxWorker(database, stuck, quick(drain_seconds=0.01, batch_size=10, lease_seconds=60, call_timeout=30))
    run = asyncio.create_task(worker.run(Signal()))
    await until(lambda: _called(stuck, 2))
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    assert await _is(database, {"processing": 20, "pending": 10}), "nobody has given them back"
    await expire_leases(database)
    target = DictTarget()
    async with running(database, target):
        await done(database, 30)
    assert set(target.held) == set(ids)
    assert all(row["attempts"] == 0 for row in await rows(database)), "a batch that died is not charged"


async def test_draining_finishes_what_is_in_flight_and_claims_no_more(database: Database) -> None:
    await create(database, 100)
    target = DictTarget()
    signal = Signal()

    async def stop_now(tasks: Sequence[Task]) -> None:
        signal.abort()
        await asyncio.sleep(0.1)

    target.before = stop_now
    await OutboxWorker(database, target, quick(batch_size=10, concurrency=2)).run(signal)
    counts = await statuses(database)
    assert counts["processing"] == 0
    assert counts["processed"] in {10, 20}


async def test_at_the_end_of_the_drain_untouched_events_go_back(database: Database) -> None:
    ids = await create(database, 4)
    target = DictTarget()
    target.hang = {ids[0]}
    signal = Signal()

    async def stop(point: Point) -> None:
        if point is Point.BEFORE_CALL:
            signal.abort()
            await asyncio.Event().wait()

    await OutboxWorker(database, target, quick(drain_seconds=0.05), probe=stop).run(signal)
    assert await statuses(database) == {"pending": 4}
    assert not any(row["suspect"] for row in await rows(database))


async def test_the_database_may_go_away_and_come_back(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    first = await create(database, 20)
    target = DictTarget()
    async with running(database, target):
        await done(database)
        async with database.acquire() as connection:
            await connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            await connection.execute(database.sql("ALTER TABLE {schema}.memory_outbox RENAME TO hidden"))
            await asyncio.sleep(1)
            await connection.execute(database.sql("ALTER TABLE {schema}.hidden RENAME TO memory_outbox"))
        second = await create(database, 20)
        await done(database)
    assert set(target.held) == {*first, *second}
    messages = [record.message for record in caplog.records]
    assert 1 <= messages.count("the database does not serve; waiting for it") <= 2, "once per change of state"
    assert "the database serves again" in messages


async def test_conflict_and_ahead_are_told(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    conflict, ahead = await create(database, 2)
    target, registry = DictTarget(), CollectorRegistry()
    target.verdicts = {conflict: Verdict.CONFLICT, ahead: Verdict.AHEAD}
    async with running(database, target, metrics=Metrics(registry)) as worker:
        await done(database)
    assert worker.total.verdicts == {Verdict.CONFLICT: 1, Verdict.AHEAD: 1}
    assert registry.get_sample_value("memory_projection_hash_conflict_total", {"target": "milvus"}) == 1
    assert {record.message for record in caplog.records if record.levelno >= logging.ERROR} == {
        "the target held this version with another hash; overwritten from the truth",
        "the target is ahead of the truth",
    }


async def test_shadow_writes_nothing_and_marks_its_events(database: Database) -> None:
    held, missing = await create(database, 2)
    target, registry = DictTarget(), CollectorRegistry()
    target.held = {held: 1}
    async with running(database, target, quick(mode="Shadow"), metrics=Metrics(registry)) as worker:
        await done(database)
    assert target.calls == []
    assert target.held == {held: 1}
    assert worker.total.verdicts == {Verdict.UNCHANGED: 1, Verdict.APPLIED: 1}
    assert all(row["shadow"] for row in await rows(database))
    assert registry.get_sample_value("memory_projection_latency_seconds_count", {"target": "milvus"}) is None
    assert missing not in target.held


async def test_a_commit_wakes_the_worker_long_before_its_poll(database: Database) -> None:
    target = DictTarget()
    loop = asyncio.get_running_loop()
    async with running(database, target, quick(poll_seconds=60)):
        await create(database)
        await done(database)
        await asyncio.sleep(0.3)
        started = loop.time()
        await create(database)
        await done(database)
        assert loop.time() - started < 5


async def test_the_latency_is_measured_by_the_database(database: Database) -> None:
    await create(database, 10)
    registry = CollectorRegistry()
    async with running(database, DictTarget(), metrics=Metrics(registry)):
        await done(database)
    assert registry.get_sample_value("memory_projection_latency_seconds_count", {"target": "milvus"}) == 10
    total = registry.get_sample_value("memory_projection_latency_seconds_sum", {"target": "milvus"})
    assert total is not None
    assert 0 < total < 300


def test_a_renewal_that_cannot_be_in_time_is_refused() -> None:
    database: Any = None
    with pytest.raises(SettingsError, match="renew_seconds"):
        OutboxWorker(database, DictTarget(), OutboxSettings(lease_seconds=10, renew_seconds=9))
