"""Hints that events are waiting: LISTEN on a connection of its own. Polling is the truth; a lost hint costs a pause.

Notifications are debounced, so that a burst of commits wakes a worker once. Source: design section 6.6.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Any

from memplane.outbox.channel import outbox_channel
from memplane.outbox.events import Target
from memplane.outbox.patience import DATABASE_ERRORS, rest
from memplane.schema.database import Database
from memplane.signal import Signal

logger = logging.getLogger(__name__)

DEBOUNCE_SECONDS = 0.01
RECONNECT_SECONDS = (0.5, 15.0)
"""First and longest pause before LISTEN is tried again."""
CHECK_SECONDS = 30.0
"""How often an idle connection is asked for a sign of life, so that a silently dropped one is noticed."""


class Wakeup:
    """A flag that is raised at most once per debounce interval, however often it is touched."""

    def __init__(self, debounce_seconds: float = DEBOUNCE_SECONDS) -> None:
        self._debounce = debounce_seconds
        self._raised = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    def touch(self) -> None:
        """Raise the flag soon."""
        if self._timer is None and not self._raised.is_set():
            self._timer = asyncio.get_running_loop().call_later(self._debounce, self.now)

    def now(self) -> None:
        """Raise the flag at once."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._raised.set()

    def lower(self) -> None:
        """Forget what was raised so far."""
        self._raised.clear()

    async def wait(self, seconds: float) -> bool:
        """Wait for the flag, but no longer than `seconds`; lowers it. True when it was raised."""
        try:
            async with asyncio.timeout(seconds):
                await self._raised.wait()
        except TimeoutError:
            return False
        finally:
            self._raised.clear()
        return True


async def listen(database: Database, target: Target, wakeup: Wakeup, stop: Signal) -> None:
    """Touch `wakeup` for every notification about `target` until `stop`; reconnects for ever."""
    pause = RECONNECT_SECONDS[0]
    while not stop.aborted:
        try:
            await _listen_once(database, target, wakeup, stop)
            pause = RECONNECT_SECONDS[0]
        except DATABASE_ERRORS as error:
            logger.debug("LISTEN failed", extra={"target": target.value, "error": type(error).__name__})
        await rest(stop, pause * (0.5 + random.random()))  # noqa: S311 - jitter, not a secret
        pause = min(RECONNECT_SECONDS[1], pause * 2)


async def _listen_once(database: Database, target: Target, wakeup: Wakeup, stop: Signal) -> None:
    """Listen until the connection ends or `stop`."""
    ended = Signal()

    def on_notification(_connection: object, _pid: int, _channel: str, payload: object) -> None:
        if payload == target.value:
            wakeup.touch()

    def on_end(_connection: object) -> None:
        ended.abort()

    connection = await database.connect_direct()
    try:
        connection.add_termination_listener(on_end)
        await connection.add_listener(outbox_channel(database), on_notification)
        # What was committed before LISTEN took effect was not heard.
        wakeup.now()
        over = Signal.any(stop, ended)
        while not over.aborted:
            await rest(over, CHECK_SECONDS)
            if not over.aborted:
                await connection.execute("SELECT 1", timeout=CHECK_SECONDS)
    finally:
        await _close(connection)


async def _close(connection: Any) -> None:
    connection.terminate() if connection.is_closed() else await connection.close(timeout=5)
