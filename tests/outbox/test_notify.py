"""Hints: heard, debounced, and heard again after the connection broke."""

from __future__ import annotations

import asyncio

import pytest

from memplane.outbox import notify
from memplane.outbox.events import Target
from memplane.outbox.lease import Lease
from memplane.outbox.notify import Wakeup, listen
from memplane.outbox.patience import GaveUp, Patience, rest
from memplane.schema.database import Database
from memplane.signal import Signal
from tests.outbox.world import NEO4J, claim_some, create, execute, expire_leases


async def test_a_burst_wakes_once() -> None:
    wakeup = Wakeup(debounce_seconds=0.02)
    for _ in range(100):
        wakeup.touch()
    assert not await wakeup.wait(0.001), "not before the debounce is over"
    assert await wakeup.wait(1)
    assert not await wakeup.wait(0.05)
    wakeup.touch()
    wakeup.now()
    assert await wakeup.wait(0)
    wakeup.now()
    wakeup.lower()
    assert not await wakeup.wait(0.01)


async def test_hints_are_for_the_target_and_survive_a_broken_connection(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "RECONNECT_SECONDS", (0.01, 0.05))
    wakeup, stop = Wakeup(), Signal()
    listening = asyncio.create_task(listen(database, Target.MILVUS, wakeup, stop))
    assert await wakeup.wait(5), "what was committed before LISTEN was not heard: look once"
    await create(database, targets=NEO4J)
    assert not await wakeup.wait(0.2)
    await create(database)
    assert await wakeup.wait(5)
    await execute(
        database,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND query ILIKE 'LISTEN%' AND pid <> pg_backend_pid()",
    )
    assert await wakeup.wait(5), "after the reconnect it looks again"
    await create(database)
    assert await wakeup.wait(5)
    stop.abort()
    async with asyncio.timeout(5):
        await listening


async def test_patience_ends_with_success_or_with_the_signal() -> None:
    patience, until, calls = Patience(first_seconds=0.001), Signal(), 0

    async def third_time_lucky() -> int:
        nonlocal calls
        calls += 1
        if calls < 3:
            raise ConnectionRefusedError
        return calls

    async def never() -> int:
        until.abort()
        raise ConnectionRefusedError

    assert await patience.insist(third_time_lucky, until) == 3
    assert not patience.away
    with pytest.raises(GaveUp):
        await patience.insist(never, until)
    assert patience.away

    async def defect() -> int:
        raise KeyError

    with pytest.raises(KeyError):
        await patience.insist(defect, Signal())


async def test_a_rest_ends_with_its_signal() -> None:
    signal = Signal()
    asyncio.get_running_loop().call_later(0.01, signal.abort)
    async with asyncio.timeout(5):
        await rest(signal, 60)
        await rest(signal, 60)
        await rest(Signal(), 0)


async def test_a_lease_is_renewed_and_notices_what_it_has_lost(database: Database) -> None:
    await create(database, 2)
    events = await claim_some(database, lease=1)
    now = 1000.0
    lease = Lease(database, events, granted_at=now, lease_seconds=10, renew_seconds=5, clock=lambda: now)
    assert lease.remaining() == 9
    now += 8
    assert lease.remaining() == 1
    await lease.renew_now()
    assert lease.remaining() == 9
    assert lease.lost == set()
    await execute(
        database,
        "UPDATE {schema}.memory_outbox SET claim_token = gen_random_uuid() WHERE id = $1",
        events[0].id,
    )
    await lease.renew_now()
    assert lease.lost == {events[0].id}
    await expire_leases(database)
    async with lease:
        pass
