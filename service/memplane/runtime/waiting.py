"""Waiting that leaves nothing behind: a signal beside asyncio's own cancellation, and drains that end.

Neighbours: `runtime.py` drains registrations with `InFlight`; transports stop a caller's wait with `abortable`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from memplane.signal import Signal

T = TypeVar("T")


class InFlight:
    """Counts the `with` blocks that are in flight; `idle()` waits until there is none."""

    def __init__(self) -> None:
        self.count = 0
        self._waiters: list[asyncio.Future[None]] = []

    def __enter__(self) -> None:
        self.count += 1

    def __exit__(self, *_: object) -> None:
        self.count -= 1
        if self.count == 0 and self._waiters:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    async def idle(self) -> None:
        while self.count:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter


@contextmanager
def linked(first: Signal | None, second: Signal | None) -> Iterator[Signal | None]:
    """Both signals as one for the time of a block; afterwards neither remembers it. One alone is passed on itself."""
    if first is None or second is None or first is second:
        yield first or second
        return
    both = Signal()
    removers = [source.on_abort(partial(_pass_on, source, both)) for source in (first, second)]
    try:
        yield both
    finally:
        for remove in removers:
            remove()


def _pass_on(source: Signal, target: Signal) -> None:
    target.abort(source.reason)


async def settle(tasks: Iterable[asyncio.Task[Any]], *, cancel: bool) -> None:
    """Wait until every task is done, even while being cancelled oneself; then let that cancellation through.

    The caller looks at the outcomes; nothing is raised for them here.
    """
    waiting = set(tasks)
    if cancel:
        for task in waiting:
            task.cancel()
    cancelled: asyncio.CancelledError | None = None
    while pending := {task for task in waiting if not task.done()}:
        try:
            await asyncio.wait(pending)
        except asyncio.CancelledError as error:
            cancelled = error
            for task in pending:
                task.cancel()
    for task in waiting:
        if not task.cancelled():
            task.exception()  # marks it as looked at
    if cancelled is not None:
        raise cancelled


async def abortable(work: Coroutine[Any, Any, T], signal: Signal | None) -> T:
    """Await `work`, but stop waiting and raise the signal's reason as soon as it aborts. `work` is cancelled then."""
    if signal is None:
        return await work
    if signal.aborted:
        work.close()
        signal.raise_if_aborted()
    task = asyncio.ensure_future(work)
    wake: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake_up() -> None:
        if not wake.done():
            wake.set_result(None)

    remove = signal.on_abort(wake_up)
    try:
        await asyncio.wait((task, wake), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            await settle({task}, cancel=True)
            signal.raise_if_aborted()
        return task.result()
    except asyncio.CancelledError:
        await settle({task}, cancel=True)
        raise
    finally:
        remove()
        wake.cancel()
