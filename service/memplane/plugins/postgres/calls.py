"""How a store call meets the database: cancellation by signal, retries of deadlocks, errors that say nothing internal.

Errors of this store beside the contract's: `STORE_UNAVAILABLE` (PostgreSQL is away, read-only, or too slow) and
`STORE_BUSY` (a change lost against concurrent ones too often). Anything unforeseen passes and becomes
MEMORY_BACKEND_ERROR in the node.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

import asyncpg

from memplane.errors import PluginError, TargetUnavailable
from memplane.schema.database import CONNECT_ERRORS, DEAD_CONNECTION, Connection, Database
from memplane.signal import Signal, SignalAborted

T = TypeVar("T")

ATTEMPTS: Final = 12
"""How often a change is tried. Locks are taken in one order, so real deadlocks are rare."""

UNAVAILABLE: Final = "The store is unavailable"

_RETRIED: Final = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)


class StartOver(Exception):  # noqa: N818 - an instruction to `changing`, never seen outside
    """What was read before the locks no longer holds: roll back and try again."""


async def reading(database: Database, signal: Signal | None, work: Callable[[Connection], Coroutine[Any, Any, T]]) -> T:
    """Run `work` on a connection; aborting the signal cancels its statement and raises the reason.

    Connections may have died in the pool (a restarted server): a read is repeated on the next one.
    """

    async def once() -> T:
        async with database.acquire() as connection:
            return await work(connection)

    return await reading_steadily(database, signal, once)


async def reading_steadily(database: Database, signal: Signal | None, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """`reading` for work that finds its connection itself (`Database.read`)."""

    async def repeated() -> T:
        for _ in range(database.settings.pool_max):
            try:
                return await work()
            except DEAD_CONNECTION:
                continue
        return await work()

    return await _translated(_cancellable(repeated(), signal), UNAVAILABLE)


async def changing(database: Database, signal: Signal | None, work: Callable[[Connection], Awaitable[T]]) -> T:
    """Run `work` in a transaction, again from the start after a deadlock or `StartOver`. All of it or nothing."""
    return await _translated(
        _cancellable(_attempts(database, work), signal),
        "The store became unavailable; the change may or may not have been stored",
    )


async def _attempts(database: Database, work: Callable[[Connection], Awaitable[T]]) -> T:
    for attempt in range(ATTEMPTS):
        try:
            async with database.transaction() as connection:
                return await work(connection)
        except StartOver:
            continue
        except _RETRIED:
            # Whoever lost against each other must not meet again in step.
            await asyncio.sleep(random.uniform(0, 0.01 * 2 ** min(attempt, 6)))  # noqa: S311 - jitter
    raise PluginError("STORE_BUSY", "Too many concurrent changes of the same memories; try again")


async def _cancellable(operation: Coroutine[Any, Any, T], signal: Signal | None) -> T:
    """`operation`, cancelled when the signal aborts. No task of its own: that would cost every call one more."""
    if signal is None:
        return await operation
    if signal.aborted:
        operation.close()
        raise signal.reason or SignalAborted()
    task = asyncio.current_task()
    assert task is not None
    cancelled = False

    def cancel() -> None:
        nonlocal cancelled
        # A task that cancels itself would only hear of it at its next await, wherever that is.
        if asyncio.current_task() is not task:
            cancelled = True
            task.cancel()

    remove = signal.on_abort(cancel)
    try:
        return await operation
    except asyncio.CancelledError:
        # Somebody else may have cancelled the task, too; then the cancellation goes on.
        if cancelled and task.cancelling() == 1 and signal.reason is not None:
            raise signal.reason from None
        raise
    finally:
        remove()
        if cancelled:
            task.uncancel()


async def _translated(operation: Coroutine[Any, Any, T], unavailable: str) -> T:
    try:
        return await operation
    except SignalAborted:
        raise
    except TargetUnavailable:
        # There was no connection, so nothing was sent.
        raise PluginError("STORE_UNAVAILABLE", UNAVAILABLE) from None
    except (*CONNECT_ERRORS, asyncpg.QueryCanceledError):
        raise PluginError("STORE_UNAVAILABLE", unavailable) from None
