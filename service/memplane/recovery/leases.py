"""Who runs a task: one process at a time, by a lease that is renewed meanwhile, and lost by a process that was killed.

Within `held` every change and note of the task is fenced by the lease: a process that was stopped for longer than its
lease writes nothing more when it wakes up, and sends nothing that it would have to note first. What it had sent before
is harmless: operations have stable keys, and those, not leases, keep them from being done twice.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar

from memplane.errors import TargetUnavailable
from memplane.recovery.errors import JobBusy
from memplane.recovery.jobs import JobStore
from memplane.signal import Signal

LEASE_SECONDS = 30.0
_RENEWALS = 3
"""Renewals per lease: two may fail before it ends."""

_holding: ContextVar[tuple[str, str] | None] = ContextVar("memplane_recovery_lease", default=None)
"""Task and owner of the lease that this task of asyncio, and whatever it has started, runs under."""


def owner_of(job_id: str) -> str | None:
    """The owner under whose lease the calling code runs this task; None outside `held`."""
    holding = _holding.get()
    return holding[1] if holding is not None and holding[0] == job_id else None


_AWAY: tuple[type[Exception], ...] = (TargetUnavailable, sqlite3.OperationalError)


@asynccontextmanager
async def held(
    store: JobStore, job_id: str, owner: str, seconds: float = LEASE_SECONDS, *, signal: Signal | None = None
) -> AsyncIterator[Signal]:
    """Hold the task's lease. Yields a signal for the flow: it aborts with `signal`, or with `JobBusy` on a lost lease.

    owner: unique per run. Raises `JobBusy` when another's lease has not ended.
    """
    if not await store.acquire(job_id, owner, seconds):
        raise JobBusy("Another process runs this task")
    lost = Signal()
    renewal = asyncio.create_task(_renew(store, job_id, owner, seconds, lost))
    outer = _holding.set((job_id, owner))
    try:
        yield Signal.any(signal, lost) if signal is not None else lost
    finally:
        _holding.reset(outer)
        renewal.cancel()
        with suppress(asyncio.CancelledError):
            await renewal
        with suppress(*_AWAY):  # it ends by itself
            await store.release(job_id, owner)


async def _renew(store: JobStore, job_id: str, owner: str, seconds: float, lost: Signal) -> None:
    clock = asyncio.get_running_loop().time
    until = clock() + seconds
    while True:
        await asyncio.sleep(seconds / _RENEWALS)
        asked = clock()
        try:
            ours = await store.acquire(job_id, owner, seconds)
        except _AWAY:
            ours = asked < until
        else:
            until = asked + seconds
        if not ours:
            lost.abort(JobBusy("The task's lease was lost"))
            return
