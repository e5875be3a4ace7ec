"""What is particular to the in-memory store: its clock, its options, threads, and the order of keyword hits."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from memplane.contracts import CallOptions, Scope
from memplane.errors import PluginError
from memplane.nodes import create_memory
from memplane.plugins.inmemory import InMemoryBackend
from memplane.plugins.registry import Resources, create_store
from memplane.settings import StoreSettings
from memplane.signal import Signal

SCOPE = Scope("acme", "ada")


class Clock:
    def __init__(self) -> None:
        self.time = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.time


async def test_expiry_follows_the_injected_clock_to_the_instant() -> None:
    clock = Clock()
    memory = create_memory(store=InMemoryBackend(now=clock).scoped(SCOPE))
    draft = {"key": "k", "content": 1, "metadata": {"expires_at": "2026-01-01T00:00:10Z"}}
    [item] = (await memory.write({"memories": [draft]})).unwrap()
    assert item["createdAt"] == "2026-01-01T00:00:00.000000Z"
    clock.time += timedelta(seconds=9.999999)
    assert len((await memory.get({"keys": ["k"]})).unwrap()) == 1
    clock.time += timedelta(microseconds=1)
    assert (await memory.get({"keys": ["k"]})).unwrap() == []
    assert (await memory.write({"memories": [{"key": "k", "content": 2}]})).status == "success"


async def test_times_never_run_backwards() -> None:
    clock = Clock()
    memory = create_memory(store=InMemoryBackend(now=clock).scoped(SCOPE))
    [item] = (await memory.write({"memories": [{"content": 1}]})).unwrap()
    clock.time -= timedelta(days=1)
    [updated] = (await memory.update({"memories": [{"id": item["id"], "content": 2}]})).unwrap()
    assert updated["updatedAt"] == item["updatedAt"]


@pytest.mark.parametrize("through", ["options", "settings"])
async def test_expected_versions_can_be_made_mandatory(through: str) -> None:
    if through == "options":
        backend = create_store("inmemory", {"require_expected_version": True}, Resources())
    else:
        root = cast(Any, SimpleNamespace(store=StoreSettings(require_expected_version=True)))
        backend = create_store("inmemory", {}, Resources(settings=root))
    memory = create_memory(store=backend.scoped(SCOPE))
    [item] = (await memory.write({"memories": [{"content": 1}]})).unwrap()
    for result in (
        await memory.update({"memories": [{"id": item["id"], "content": 2}]}),
        await memory.delete({"ids": [item["id"]]}),
    ):
        assert result.error is not None
        assert result.error.code == "INVALID_INPUT"
        assert "expectedVersion" in result.error.message
    assert (await memory.delete({"ids": [item["id"]], "expectedVersions": {item["id"]: 1}})).status == "success"


async def test_rare_words_and_short_memories_come_first() -> None:
    memory = create_memory(store=InMemoryBackend().scoped(SCOPE))
    contents = ["common words here", "common zebra", "common zebra and a very long tail of other words", "unrelated"]
    items = (await memory.write({"memories": [{"content": content} for content in contents]})).unwrap()
    hits = (await memory.search({"query": "common zebra"})).unwrap()
    assert [hit["memory"]["content"] for hit in hits] == [contents[1], contents[2], contents[0]]
    scores = [hit["score"] for hit in hits]
    assert scores == sorted(scores, reverse=True)
    assert all(score > 0 for score in scores)
    assert len(items) == 4
    assert (await memory.search({"query": {"text": "zebra"}, "limit": 1})).unwrap()[0]["memory"]["id"] == items[1]["id"]
    for bad in (None, 1, {"vector": [1.0]}, {}):
        result = await memory.search({"query": bad})
        assert result.error is not None
        assert result.error.code == "INVALID_INPUT"


async def test_an_aborted_signal_stops_a_direct_call() -> None:
    store, signal = InMemoryBackend().scoped(SCOPE), Signal()
    signal.abort()
    with pytest.raises(BaseException) as caught:
        await store.write({"memories": [{"content": 1}]}, CallOptions(signal=signal))
    assert caught.value is signal.reason


@pytest.mark.parametrize(("tenant", "user"), [("", "u"), ("t", ""), ("t" * 257, "u"), ("t", "\0")])
def test_a_scope_must_be_two_names(tenant: str, user: str) -> None:
    with pytest.raises(PluginError) as caught:
        InMemoryBackend().scoped(Scope(tenant, user))
    assert caught.value.code == "INVALID_INPUT"


def test_threads_share_a_backend() -> None:
    backend = InMemoryBackend()
    codes: list[str] = []

    def work(number: int) -> None:
        async def run() -> None:
            memory = create_memory(store=backend.scoped(SCOPE))
            for step in range(20):
                result = await memory.write({"memories": [{"key": f"k{step}", "content": number}, {"content": step}]})
                codes.append(result.error.code if result.error else "success")

        asyncio.run(run())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes.count("success") == 20
    assert codes.count("CONFLICT") == 140

    async def count() -> int:
        page = await create_memory(store=backend.scoped(SCOPE)).query({"limit": 1000})
        return len(page.unwrap()["items"])

    assert asyncio.run(count()) == 40
