"""Signals: aborted once, observed by many, no callback kept longer than needed."""

from __future__ import annotations

import asyncio

import pytest

from memplane.signal import Signal, SignalAborted, SignalTimeout, race


class Reason(Exception):
    pass


def test_it_aborts_once_with_the_first_reason() -> None:
    signal, first = Signal(), Reason()
    signal.raise_if_aborted()
    assert (signal.aborted, signal.reason) == (False, None)
    signal.abort(first)
    signal.abort(Reason())
    assert signal.reason is first
    with pytest.raises(Reason) as caught:
        signal.raise_if_aborted()
    assert caught.value is first


def test_the_default_reason() -> None:
    signal = Signal()
    signal.abort()
    assert isinstance(signal.reason, SignalAborted)


def test_callbacks_are_called_once_or_at_once_and_can_be_taken_back() -> None:
    signal = Signal()
    calls: list[str] = []
    signal.on_abort(lambda: calls.append("kept"))
    remove = signal.on_abort(lambda: calls.append("removed"))
    remove()
    remove()
    signal.abort()
    signal.abort()
    signal.on_abort(lambda: calls.append("late"))
    assert calls == ["kept", "late"]


async def test_waiting_ends_with_the_reason() -> None:
    signal = Signal()
    waiting = [asyncio.create_task(signal.wait()) for _ in range(2)]
    await asyncio.sleep(0)
    signal.abort(Reason())
    assert [await task for task in waiting] == [signal.reason, signal.reason]
    assert await signal.wait() is signal.reason


async def test_a_cancelled_wait_leaves_no_callback() -> None:
    signal = Signal()
    task = asyncio.create_task(signal.wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert signal._callbacks == []


async def test_a_timeout_aborts_by_itself_unless_released() -> None:
    assert isinstance(await Signal.timeout(0.001).wait(), SignalTimeout)
    released = Signal.timeout(0.001)
    released.release()
    await asyncio.sleep(0.01)
    assert not released.aborted


def test_any_follows_the_first_and_lets_the_others_go() -> None:
    first, second = Signal(), Signal()
    combined = Signal.any(first, None, second)
    assert not combined.aborted
    second.abort(Reason())
    assert combined.reason is second.reason
    assert first._callbacks == []


def test_any_of_an_aborted_signal_is_aborted_and_follows_nothing_else() -> None:
    first, second = Signal(), Signal()
    first.abort(Reason())
    assert Signal.any(first, second).reason is first.reason
    assert second._callbacks == []


def test_a_released_combination_is_kept_by_no_source() -> None:
    source = Signal()
    combined = Signal.any(source)
    combined.release()
    assert source._callbacks == []
    source.abort()
    assert not combined.aborted
    combined.abort()
    assert combined.aborted


async def test_race_gives_the_result_or_the_reason() -> None:
    async def work() -> int:
        await asyncio.sleep(0)
        return 5

    assert await race(work(), None) == 5
    signal = Signal()
    assert await race(work(), signal) == 5
    assert signal._callbacks == []


async def test_race_cancels_and_awaits_the_work() -> None:
    signal, events = Signal(), []

    async def work() -> None:
        try:
            signal.abort(Reason())
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            events.append("cleaned up")

    with pytest.raises(Reason):
        await race(work(), signal)
    assert events == ["cleaned up"]


async def test_race_with_an_aborted_signal_does_not_start_the_work() -> None:
    signal = Signal()
    signal.abort(Reason())
    started = False

    async def work() -> None:
        nonlocal started
        started = True

    with pytest.raises(Reason):
        await race(work(), signal)
    assert not started


async def test_cancelling_the_racing_task_cancels_the_work_and_is_no_abort() -> None:
    signal, cancelled = Signal(), asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    task = asyncio.create_task(race(work(), signal))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    signal_reason_before = signal.reason
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cancelled.is_set()
    assert signal_reason_before is None
