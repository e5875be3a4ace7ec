"""Cooperative cancellation that crosses plugin boundaries: one object, aborted once, observed by many.

asyncio's own cancellation stops a task; a `Signal` tells every callee of an operation, plugins and drivers included,
that its result is no longer wanted. Both work side by side.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


class SignalAborted(Exception):  # noqa: N818 - the default reason of an abort, like asyncio.CancelledError
    """The default reason of an aborted signal."""


class SignalTimeout(SignalAborted):
    """The reason of a signal that aborted because its time ran out."""


class Signal:
    """A one-way switch from live to aborted, with a reason (any exception).

    Aborting is not thread-safe: call it from the event loop's thread (elsewhere through
    `loop.call_soon_threadsafe(signal.abort)`).
    """

    def __init__(self) -> None:
        self._reason: BaseException | None = None
        self._callbacks: list[Callable[[], None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._sources: list[Callable[[], None]] = []

    @property
    def aborted(self) -> bool:
        return self._reason is not None

    @property
    def reason(self) -> BaseException | None:
        """Why it was aborted; None while it is live."""
        return self._reason

    def abort(self, reason: BaseException | None = None) -> None:
        """Abort with a reason (default: `SignalAborted`). Later calls change nothing."""
        if self._reason is not None:
            return
        self._reason = reason if reason is not None else SignalAborted("The operation was aborted")
        self.release()
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def release(self) -> None:
        """Stop following a time or other signals; it can still be aborted by hand. Idempotent.

        For a signal of `timeout` or `any` whose use is over: otherwise a long-lived source would keep every
        short-lived combination with it.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        sources, self._sources = self._sources, []
        for remove in sources:
            remove()

    def raise_if_aborted(self) -> None:
        """Raise the reason if aborted."""
        if self._reason is not None:
            raise self._reason

    def on_abort(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` once when aborted (at once if it already is). Returns a function that takes it back."""
        if self._reason is not None:
            callback()
            return lambda: None
        self._callbacks.append(callback)

        def remove() -> None:
            if callback in self._callbacks:
                self._callbacks.remove(callback)

        return remove

    async def wait(self) -> BaseException:
        """Wait until aborted; returns the reason."""
        if self._reason is not None:
            return self._reason
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not future.done():
                future.set_result(None)

        remove = self.on_abort(wake)
        try:
            await future
        finally:
            remove()
        return self.reason or SignalAborted()

    @classmethod
    def timeout(cls, seconds: float) -> Signal:
        """A signal that aborts with `SignalTimeout` after `seconds` (needs a running event loop)."""
        signal = cls()
        signal._timer = asyncio.get_running_loop().call_later(
            seconds, lambda: signal.abort(SignalTimeout(f"The operation took longer than {seconds:g} s"))
        )
        return signal

    @classmethod
    def any(cls, *signals: Signal | None) -> Signal:
        """A signal that aborts with the first of `signals` (None is left out), with that one's reason.

        `release` it when its use is over and one of the sources lives longer.
        """
        combined = cls()
        for source in signals:
            if source is None or combined.aborted:
                continue
            combined._sources.append(source.on_abort(lambda source=source: combined.abort(source.reason)))  # type: ignore[misc]
        return combined


async def race(work: Awaitable[T], signal: Signal | None) -> T:
    """The result of `work`, or the signal's reason raised as soon as it aborts; `work` is then cancelled and awaited.

    For plugins whose driver understands asyncio cancellation but no `Signal`. Cancelling the caller cancels `work`.
    """
    if signal is None:
        return await work
    task = asyncio.ensure_future(work)

    def stop() -> None:
        task.cancel()

    remove = signal.on_abort(stop)
    try:
        return await task
    except asyncio.CancelledError:
        current = asyncio.current_task()
        if signal.reason is not None and not (current is not None and current.cancelling()):
            raise signal.reason from None
        raise
    finally:
        remove()
