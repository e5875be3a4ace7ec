"""Who runs a task: one process at a time, by a lease that is renewed meanwhile, and lost by a process that was killed.

A lease keeps work from being done twice in vain. It is not what keeps operations from being done twice: that are their
stable keys, so a process that was stopped for longer than its lease does no harm when it wakes up.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from memplane.errors import TargetUnavailable
from memplane.recovery.errors import JobBusy
from memplane.recovery.jobs import JobStore
from memplane.signal import Signal

LEASE_SECONDS = 30.0
_RENEWALS = 3
"""Renewals per lease: two may fail before it ends."""

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
    try:
        yield Signal.any(signal, lost) if signal is not None else lost
    finally:
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
