"""Retry arithmetic and the breaker: pure, with injected clock and chance."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from memplane.outbox.breaker import Breaker
from memplane.outbox.logs import trace_id
from memplane.outbox.retry import RetryPolicy
from memplane.settings import OutboxSettings


def test_the_delay_doubles_up_to_its_cap() -> None:
    policy = RetryPolicy(base_seconds=1, max_seconds=300, jitter=0.5)
    assert [policy.delay(n, draw=lambda: 0.5) for n in (1, 2, 3, 9, 10)] == [1, 2, 4, 256, 300]
    assert policy.delay(1, draw=lambda: 0.0) == 0.5


@given(attempts=st.integers(1, 10_000), draw=st.floats(0, 1, exclude_max=True))
def test_the_delay_stays_in_its_bounds(attempts: int, draw: float) -> None:
    policy = RetryPolicy.of(OutboxSettings())
    assert 0.5 <= policy.delay(attempts, draw=lambda: draw) <= 300
    assert policy.exhausted(attempts) == (attempts >= 10)


def test_the_breaker_opens_waits_and_closes() -> None:
    now = 100.0
    breaker = Breaker(5, clock=lambda: now, draw=lambda: 0.5)
    assert breaker.closed
    assert breaker.remaining() == 0
    assert breaker.trip()
    assert not breaker.trip()
    assert not breaker.half_open
    assert breaker.remaining() == 5
    now = 105.0
    assert breaker.half_open
    breaker.trip()
    assert breaker.remaining() == 5
    breaker.reset()
    assert breaker.closed


def test_a_trace_id_is_read_from_its_traceparent() -> None:
    assert trace_id("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01") == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert trace_id("nonsense") is None
    assert trace_id(None) is None
