"""Statements that need a lock on a table in use: wait for it briefly, step back, try again.

While a statement waits for a strong lock, every other statement on the table queues up behind it. So the wait is
short; the pause in between lets them through.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final

import asyncpg

from memplane.adoption.progress import Report
from memplane.errors import SchemaError
from memplane.schema.database import Connection
from memplane.settings import AdoptionSettings
from memplane.signal import Signal

PAUSE_SECONDS: Final = 1.0


class Stopped(Exception):  # noqa: N818 - what happened, never seen outside of the package
    """The signal was aborted."""


async def under_lock(
    connection: Connection,
    settings: AdoptionSettings,
    work: Callable[[], Awaitable[None]],
    *,
    signal: Signal,
    report: Report,
    stage: str,
) -> None:
    """Run `work` in a transaction whose lock waits end early; again until it gets through.

    Raises `SchemaError` when the lock could not be had in `adoption.lock_attempts`, `Stopped`.
    """
    for attempt in range(settings.lock_attempts):
        if signal.aborted:
            raise Stopped
        try:
            async with connection.transaction():
                milliseconds = max(1, round(settings.lock_timeout_seconds * 1000))
                await connection.execute("SELECT set_config('lock_timeout', $1, TRUE)", f"{milliseconds}ms")
                await work()
            return
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError):
            report(f"{stage}: the table is locked, trying again", attempt + 1, settings.lock_attempts)
            await asyncio.sleep(PAUSE_SECONDS * random.uniform(0.5, 1.5))  # noqa: S311 - jitter
    raise SchemaError(
        f"{stage}: no lock on the table in {settings.lock_attempts} attempts of {settings.lock_timeout_seconds:g} s. "
        "A transaction holds it for long (pg_stat_activity, xact_start): end it, and run the command again"
    )
