"""Honouring a `Signal`: an aborted call ends at once, its branches are cancelled and awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from memplane.signal import Signal, SignalAborted

T = TypeVar("T")


async def until_aborted(operation: Coroutine[Any, Any, T], signal: Signal | None) -> T:
    """The operation's result; raises the signal's reason, after the operation has ended, when that aborts first."""
    if signal is None:
        return await operation
    if signal.aborted:
        operation.close()
        raise signal.reason or SignalAborted()
    task = asyncio.ensure_future(operation)

    def cancel() -> None:
        task.cancel()

    remove = signal.on_abort(cancel)
    try:
        # Cancelling the caller cancels the task, too: it is awaited directly.
        return await task
    except asyncio.CancelledError:
        current = asyncio.current_task()
        if signal.reason is not None and not (current and current.cancelling()):
            raise signal.reason from None
        raise
    finally:
        remove()
