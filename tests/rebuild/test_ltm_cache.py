"""The caches of all processes forget their bodies, whether a notification reaches them or not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from memplane.cache.listener import CacheListener
from memplane.cache.ltm import LtmCache
from memplane.contracts import Scope
from memplane.rebuild import clear_caches
from memplane.schema.database import Database
from memplane.signal import Signal

SCOPE = Scope("acme", "ann")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(15):
        while not condition():  # noqa: ASYNC110 - a cache tells nobody what it forgets
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("heard", [True, False], ids=["notified", "the notification is lost"])
async def test_every_process_forgets_its_bodies(
    database: Database, heard: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    caches = [LtmCache(max_bytes=10**6, ttl_seconds=3600) for _ in range(2)]
    # Notified ones would poll again only after a minute.
    listeners = [CacheListener(database, cache, poll_seconds=60 if heard else 0.1) for cache in caches]
    if not heard:
        monkeypatch.setattr(CacheListener, "_notified", lambda *_: None)
    stop = Signal()
    tasks = [asyncio.create_task(listener.run(stop)) for listener in listeners]
    try:
        await until(lambda: all(listener.polls and listener.listening for listener in listeners))
        for cache in caches:
            item: Any = {"id": "1", "version": 3, "content": "wrong, but of the right version"}
            cache.put(SCOPE, item, expires_at=None)
            assert cache.body(SCOPE, 1, 3) is not None
        report = await clear_caches(database)
        assert report.state == "completed"
        await until(lambda: all(cache.body(SCOPE, 1, 3) is None for cache in caches))
        assert all(cache.size < 1000 for cache in caches)
    finally:
        stop.abort()
        await asyncio.gather(*tasks)


async def test_it_can_be_repeated(database: Database) -> None:
    first, second = await clear_caches(database), await clear_caches(database)
    assert second.run_id > first.run_id
