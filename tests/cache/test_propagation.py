"""Two instances on one database: what one changes, the other one's cache learns, with notifications and without."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from memplane.cache.cached_store import CachedBackend
from memplane.cache.channel import cache_channel
from memplane.cache.listener import MAX_CHANGES, CacheListener
from memplane.cache.ltm import LtmCache
from memplane.cache.target import CacheTarget
from memplane.contracts import CallOptions, Scope
from memplane.outbox.claim import claim, complete
from memplane.outbox.events import Target, Task
from memplane.outbox.truth import read_truths
from memplane.plugins.postgres.backend import PostgresBackend
from memplane.schema.database import Database
from memplane.settings import PostgresSettings
from memplane.signal import Signal, SignalAborted

ME = Scope("acme", "ann")
NO_OPTIONS = CallOptions()


class Instance:
    """A service process in small: a pool, a cache, a store with read-your-writes, a listener."""

    def __init__(self, settings: PostgresSettings, *, poll_seconds: float = 60, ttl: float = 60) -> None:
        self.database = Database(settings)
        self.cache = LtmCache(max_bytes=10**6, ttl_seconds=ttl)
        backend = PostgresBackend(self.database, targets={Target.LTM_CACHE}, on_commit=self.cache.on_commit)
        self.store = CachedBackend(backend, self.cache).scoped(ME)
        self.listener = CacheListener(self.database, self.cache, poll_seconds=poll_seconds, jitter=lambda: 1.0)

    async def write(self, content: Any) -> str:
        [item] = await self.store.write({"memories": [{"content": content}]}, NO_OPTIONS)
        return item["id"]

    async def update(self, memory_id: str, content: Any) -> None:
        await self.store.update({"memories": [{"id": memory_id, "content": content}]}, NO_OPTIONS)

    async def content(self, memory_id: str) -> Any:
        found = await self.store.get({"ids": [memory_id], "keys": []}, NO_OPTIONS)
        return found[0]["content"] if found else None

    async def broadcast(self) -> int:
        """Let the events of ltm_cache take effect; returns how many."""
        target, done = CacheTarget(self.database), 0
        while events := await claim(self.database, target.name, worker="test", limit=100, lease_seconds=60):
            truths = await read_truths(self.database, events, target.needs)
            await target.project([Task(event, truths[event.id]) for event in events], timeout=10)
            await complete(self.database, events)
            done += len(events)
        return done


@asynccontextmanager
async def running(settings: PostgresSettings, **options: float) -> AsyncIterator[Instance]:
    instance, stop = Instance(settings, **options), Signal()
    task = asyncio.create_task(instance.listener.run(stop))
    try:
        await until(lambda: instance.listener.polls > 0)
        yield instance
    finally:
        stop.abort()
        await asyncio.wait_for(task, 10)
        await instance.database.close()


async def until(condition: Callable[[], bool], seconds: float = 15) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - a cache has no event to wait for
            await asyncio.sleep(0.01)


async def test_a_process_sees_its_own_writes_at_once(postgres_settings: PostgresSettings) -> None:
    async with running(postgres_settings) as one:
        memory_id = await one.write("first")
        assert await one.content(memory_id) == "first"
        await one.update(memory_id, "second")
        assert await one.content(memory_id) == "second"
        await one.store.delete({"ids": [memory_id]}, NO_OPTIONS)
        assert await one.content(memory_id) is None


async def test_notifications_reach_other_instances(postgres_settings: PostgresSettings) -> None:
    async with running(postgres_settings) as one, running(postgres_settings) as two:
        kept, dropped = await one.write("first"), await one.write("other")
        assert [await two.content(kept), await two.content(dropped)] == ["first", "other"]
        await one.update(kept, "second")
        await one.store.delete({"ids": [dropped]}, NO_OPTIONS)
        # Not told yet: the cache is believed, for at most the TTL.
        assert await two.content(kept) == "first"
        assert await one.broadcast() > 0
        await until(lambda: two.cache.latest(ME, int(kept)) is None and two.cache.latest(ME, int(dropped)) is None)
        assert await two.content(kept) == "second"
        assert await two.content(dropped) is None
        assert two.cache.reloads["invalidated"] >= 1


async def test_lost_notifications_are_healed_by_polling(postgres_settings: PostgresSettings) -> None:
    async with running(postgres_settings) as one, running(postgres_settings, poll_seconds=0.1) as two:
        memory_id = await one.write("first")
        assert await two.content(memory_id) == "first"
        await one.update(memory_id, "second")
        await until(lambda: two.cache.latest(ME, int(memory_id)) is None)
        assert await two.content(memory_id) == "second"


async def test_lost_notifications_are_healed_by_the_ttl(postgres_settings: PostgresSettings) -> None:
    async with running(postgres_settings) as one, running(postgres_settings, ttl=0.3) as two:
        memory_id = await one.write("first")
        assert await two.content(memory_id) == "first"
        await one.update(memory_id, "second")
        await until(lambda: two.cache.latest(ME, int(memory_id)) is None)
        assert await two.content(memory_id) == "second"


async def test_the_poll_measures_how_far_the_cache_lagged(postgres_settings: PostgresSettings) -> None:
    async with running(postgres_settings) as one:
        two = Instance(postgres_settings)
        await two.listener._poll()
        memory_id = await one.write("first")
        await two.listener._poll()
        assert await two.content(memory_id) == "first"
        await one.update(memory_id, "second")
        await two.listener._poll()
        assert 0 < two.cache.version_lag_seconds < 10
        await two.listener._poll()
        assert two.cache.version_lag_seconds == 0
        await two.database.close()


async def test_a_change_that_commits_late_is_polled(postgres_settings: PostgresSettings) -> None:
    """A transaction older than the poll, committed after it, is below no horizon."""
    async with running(postgres_settings) as one:
        two = Instance(postgres_settings)
        memory_id = await one.write("first")
        await two.listener._poll()
        assert await two.content(memory_id) == "first"
        change = one.database.sql(
            "UPDATE {schema}.long_term_memory SET version = version + 1, changed_xid = pg_current_xact_id()"
            " WHERE id = $1"
        )
        async with one.database.transaction() as connection:
            await connection.execute(change, int(memory_id))
            await one.write("a later transaction that ends earlier")
            await two.listener._poll()
            assert two.cache.latest(ME, int(memory_id)) is not None
        await two.listener._poll()
        assert two.cache.latest(ME, int(memory_id)) is None
        await two.database.close()


async def test_too_many_changes_clear_the_cache(
    postgres_settings: PostgresSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(postgres_settings) as one:
        memory_id = await one.write("first")
        one.listener._apply([{"id": number, "version": 1, "age": 0.0} for number in range(MAX_CHANGES + 1)])
        assert one.cache.latest(ME, int(memory_id)) is None


async def test_a_lost_connection_is_listened_to_again(postgres_settings: PostgresSettings) -> None:
    async with running(postgres_settings) as one, running(postgres_settings) as two:
        memory_id = await one.write("first")
        assert await two.content(memory_id) == "first"
        assert two.listener.listening
        await one.update(memory_id, "second")
        async with one.database.acquire() as connection:
            await connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND query LIKE 'LISTEN%'"
            )
        # What was missed meanwhile is polled as soon as the connection is back.
        await until(lambda: two.cache.latest(ME, int(memory_id)) is None)
        await until(lambda: two.listener.listening)
        assert await two.content(memory_id) == "second"
        await one.update(memory_id, "third")
        await one.broadcast()
        await until(lambda: two.cache.version(ME, int(memory_id)) in (None, 3))
        assert await two.content(memory_id) == "third"


async def test_polling_does_without_notifications(postgres_settings: PostgresSettings) -> None:
    """Behind a proxy that allows no LISTEN: the direct URL leads nowhere."""
    blind = postgres_settings.model_copy(
        update={"direct_dsn": postgres_settings.dsn.__class__("postgresql://127.0.0.1:1/x")}
    )
    async with running(postgres_settings) as one, running(blind, poll_seconds=0.5) as two:
        assert not two.listener.listening
        memory_id = await one.write("first")
        assert await two.content(memory_id) == "first"
        await one.update(memory_id, "second")
        await until(lambda: two.cache.latest(ME, int(memory_id)) is None)


async def test_batches_of_any_size_are_broadcast(postgres_settings: PostgresSettings) -> None:
    async with running(postgres_settings) as one:
        received: list[str] = []
        connection: asyncpg.Connection[Any] = await one.database.connect_direct()
        await connection.add_listener(cache_channel(one.database), lambda *event: received.append(str(event[3])))
        items = await one.store.write({"memories": [{"content": str(n)} for n in range(1500)]}, NO_OPTIONS)
        target = CacheTarget(one.database)
        events = await claim(one.database, target.name, worker="test", limit=5000, lease_seconds=60)
        truths = await read_truths(one.database, events, target.needs)
        await target.project([Task(event, truths[event.id]) for event in events], timeout=10)
        await until(lambda: sum(payload.count(":") for payload in received) == len(items))
        assert len(received) > 1
        assert await target.healthy()
        await connection.close()


async def test_cached_get_answers_keys_and_ids_together(postgres_settings: PostgresSettings) -> None:
    async with running(postgres_settings) as one:
        [keyed] = await one.store.write({"memories": [{"content": "keyed", "key": "k"}]}, NO_OPTIONS)
        plain = await one.write("plain")
        found = await one.store.get({"ids": [keyed["id"], plain, "007", "999999"], "keys": ["k"]}, NO_OPTIONS)
        assert sorted(item["id"] for item in found) == sorted([keyed["id"], plain])
        page = await one.store.query({"limit": 10}, NO_OPTIONS)
        assert len(page["items"]) == 2
        signal = Signal()
        signal.abort()
        with pytest.raises(SignalAborted):
            await one.store.get({"ids": [plain], "keys": []}, CallOptions(signal=signal))


async def test_a_cache_that_fails_does_not_fail_the_commit(postgres_settings: PostgresSettings) -> None:
    def failing(_: Any) -> None:
        raise RuntimeError("no memory left")

    database = Database(postgres_settings)
    store = PostgresBackend(database, targets={Target.LTM_CACHE}, on_commit=failing).scoped(ME)
    [item] = await store.write({"memories": [{"content": "kept"}]}, NO_OPTIONS)
    assert [one["content"] for one in await store.get({"ids": [item["id"]], "keys": []}, NO_OPTIONS)] == ["kept"]
    await database.close()
