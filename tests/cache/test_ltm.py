"""The cache's invariants: never an older version, never another scope, never past the TTL, never above its size."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from memplane.cache.channel import MAX_PAYLOAD, parse_payload, payloads
from memplane.cache.ltm import ENTRY_BYTES, LtmCache, json_size
from memplane.cache.metrics import CacheMetrics
from memplane.contracts import MemoryItem, Scope
from memplane.schema.committed import Committed

ME = Scope("acme", "ann")
OTHER = Scope("acme", "bob")


class Clock:
    def __init__(self) -> None:
        self.monotonic = 100.0
        self.wall = datetime(2026, 1, 1, tzinfo=UTC)

    def cache(self, *, max_bytes: int = 100_000, ttl: float = 60) -> LtmCache:
        return LtmCache(max_bytes=max_bytes, ttl_seconds=ttl, clock=lambda: self.monotonic, now=lambda: self.wall)


def item(memory_id: int, version: int = 1, content: Any = "text") -> MemoryItem:
    return MemoryItem(id=str(memory_id), content=content, version=version, metadata={"tags": ["a"]})


def test_serves_exactly_the_version_that_is_asked_for() -> None:
    cache = Clock().cache()
    cache.put(ME, item(1, 2), expires_at=None)
    assert cache.version(ME, 1) == 2
    assert cache.body(ME, 1, 2) == item(1, 2)
    assert cache.body(ME, 1, 1) is None
    assert cache.body(ME, 1, 3) is None
    assert cache.latest(ME, 1) == item(1, 2)


def test_serves_its_scope_alone() -> None:
    cache = Clock().cache()
    cache.put(ME, item(1), expires_at=None)
    for scope in (OTHER, Scope("other", "ann"), Scope("acmea", "nn")):
        assert cache.version(scope, 1) is None
        assert cache.body(scope, 1, 1) is None
        assert cache.latest(scope, 1) is None


def test_what_is_given_and_taken_is_a_copy() -> None:
    cache = Clock().cache()
    given_item = item(1)
    cache.put(ME, given_item, expires_at=None)
    given_item["metadata"]["tags"].append("changed")
    taken = cache.body(ME, 1, 1)
    assert taken == item(1)
    assert taken is not None
    taken["metadata"]["tags"].append("changed")
    assert cache.body(ME, 1, 1) == item(1)


def test_a_slow_reader_cannot_undo_a_newer_version_or_a_delete() -> None:
    cache = Clock().cache()
    cache.on_commit([Committed(1, "acme", "ann", 2, item(1, 2))])
    cache.put(ME, item(1, 1), expires_at=None)
    assert cache.body(ME, 1, 2) == item(1, 2)
    cache.on_commit([Committed(1, "acme", "ann", 3, None)])
    cache.put(ME, item(1, 2), expires_at=None)
    assert cache.latest(ME, 1) is None
    cache.invalidate(2, 5)
    cache.put(ME, item(2, 4), expires_at=None)
    assert cache.latest(ME, 2) is None
    cache.put(ME, item(2, 5), expires_at=None)
    assert cache.latest(ME, 2) == item(2, 5)


def test_invalidation_tells_whether_something_older_was_held() -> None:
    cache = Clock().cache()
    cache.put(ME, item(1, 2), expires_at=None)
    assert not cache.invalidate(1, 2)
    assert cache.latest(ME, 1) == item(1, 2)
    assert cache.invalidate(1, 3)
    assert not cache.invalidate(1, 4)
    assert not cache.invalidate(7, 1)


def test_entries_end_with_the_ttl_and_with_their_memory() -> None:
    clock = Clock()
    cache = clock.cache(ttl=60)
    cache.put(ME, item(1), expires_at=clock.wall + timedelta(seconds=30))
    clock.wall += timedelta(seconds=29)
    assert cache.latest(ME, 1) is not None
    clock.wall += timedelta(seconds=1)
    assert cache.latest(ME, 1) is None
    # PostgreSQL judges expiry where it is asked anyway.
    assert cache.body(ME, 1, 1) is not None
    clock.monotonic += 60
    assert cache.body(ME, 1, 1) is None
    assert cache.version(ME, 1) is None


def test_the_least_recently_used_go_first() -> None:
    size = ENTRY_BYTES + json_size(item(1))
    cache = Clock().cache(max_bytes=3 * size)
    for memory_id in (1, 2, 3):
        cache.put(ME, item(memory_id), expires_at=None)
    assert cache.body(ME, 1, 1) is not None
    cache.put(ME, item(4), expires_at=None)
    assert [cache.version(ME, memory_id) for memory_id in (1, 2, 3, 4)] == [1, None, 1, 1]
    assert cache.size == 3 * size


def test_a_body_that_is_too_large_leaves_no_older_one_behind() -> None:
    cache = Clock().cache(max_bytes=2000)
    cache.put(ME, item(1, 1), expires_at=None)
    cache.put(ME, item(1, 2, "x" * 5000), expires_at=None)
    assert cache.latest(ME, 1) is None
    assert cache.size <= 2000


def test_switched_off_it_holds_nothing() -> None:
    cache = Clock().cache(max_bytes=0)
    cache.put(ME, item(1), expires_at=None)
    cache.on_commit([Committed(2, "acme", "ann", 1, item(2))])
    assert not cache.enabled
    assert len(cache) == 0


def test_clearing_keeps_the_floors() -> None:
    cache = Clock().cache()
    cache.put(ME, item(1, 1), expires_at=None)
    cache.invalidate(2, 9)
    cache.clear()
    assert cache.latest(ME, 1) is None
    cache.put(ME, item(2, 8), expires_at=None)
    assert cache.latest(ME, 2) is None


def test_reloads_are_counted_by_reason() -> None:
    clock = Clock()
    cache = clock.cache(ttl=60)
    registry = CollectorRegistry()
    CacheMetrics(cache, registry)
    cache.put(ME, item(1, 1), expires_at=None)
    cache.put(ME, item(1, 2), expires_at=None)
    cache.invalidate(1, 3)
    cache.put(ME, item(1, 3), expires_at=None)
    clock.monotonic += 61
    cache.put(ME, item(1, 3), expires_at=None)
    for reason in ("miss", "version", "invalidated", "ttl"):
        assert registry.get_sample_value("memory_cache_reload_total", {"reason": reason}) == 1
    cache.version_lag_seconds = 4.5
    assert registry.get_sample_value("memory_cache_version_lag_seconds") == 4.5


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["put", "commit", "delete", "invalidate", "clear", "wait"]),
        st.integers(1, 4),
        st.integers(1, 6),
    ),
    max_size=60,
)


@given(EVENTS, st.sampled_from([700, 2000, 100_000]))
def test_no_order_of_events_serves_what_is_known_to_be_stale(events: list[tuple[str, int, int]], size: int) -> None:
    """The model: the newest version that the cache was told of since it last forgot; nothing older is served."""
    clock = Clock()
    cache = clock.cache(max_bytes=size, ttl=10)
    told: dict[int, int] = {}
    for name, memory_id, version in events:
        held = len(cache)
        if name == "put":
            cache.put(ME, item(memory_id, version), expires_at=None)
        elif name == "commit":
            cache.on_commit([Committed(memory_id, "acme", "ann", version, item(memory_id, version))])
        elif name == "delete":
            cache.on_commit([Committed(memory_id, "acme", "ann", version, None)])
        elif name == "invalidate":
            cache.invalidate(memory_id, version)
        elif name == "clear":
            cache.clear()
        else:
            clock.monotonic += version
        if name in ("put", "commit", "delete", "invalidate"):
            told[memory_id] = max(told.get(memory_id, 0), version)
        if size < 100_000 and len(cache) < held:
            # Evicted entries take their knowledge with them; the TTL bounds what that can cost.
            told = {one: known for one, known in told.items() if cache.version(ME, one) is not None}
        assert cache.size <= size
        for one, known in told.items():
            served = cache.latest(ME, one)
            if size == 100_000 and served is not None:
                assert served["version"] == known


@given(st.lists(st.tuples(st.integers(1, 2**63 - 1), st.integers(0, 2**63 - 1)), max_size=600))
def test_payloads_are_bounded_and_say_what_was_meant(stale: list[tuple[int, int]]) -> None:
    made = payloads(stale)
    assert all(0 < len(payload.encode()) <= MAX_PAYLOAD for payload in made)
    assert [pair for payload in made for pair in parse_payload(payload)] == stale


@pytest.mark.parametrize("payload", ["", "x", "1", "1:", ":1", "1:2:3", "-1:2", "1:2x", "9" * 30 + ":1", "１:2"])
def test_foreign_notifications_are_skipped(payload: str) -> None:
    assert parse_payload(payload) == []
    assert parse_payload(f"{payload},7:8") == [(7, 8)]
