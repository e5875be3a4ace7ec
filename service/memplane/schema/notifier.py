"""NOTIFY after commits, debounced: the first hint leaves at once, what follows within the pause leaves together.

Inside the writing transaction a NOTIFY would make its commit wait for every other one: PostgreSQL puts such commits
under one lock, which costs a fifth to a quarter of the commit rate. A hint that gets lost costs a worker one polling
pause, never an event. Source: design section 6.6.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Final, TypeAlias

logger: Final = logging.getLogger(__name__)

PAUSE_SECONDS: Final = 0.01
"""Least time between two sendings of a process."""

CLOSE_SECONDS: Final = 2.0
"""How long closing waits for the last hints."""

Note: TypeAlias = tuple[str, str]
"""Channel and payload."""


class Notifier:
    """Sends notes through `send`, from a task of its own that lives while there is something to send."""

    def __init__(
        self, send: Callable[[Collection[Note]], Awaitable[None]], *, errors: tuple[type[BaseException], ...]
    ) -> None:
        self._send = send
        self._errors = errors
        self._waiting: set[Note] = set()
        self._task: asyncio.Task[None] | None = None

    def add(self, notes: Collection[Note]) -> None:
        """Send these notes soon; equal ones that wait already are sent once."""
        if not notes:
            return
        self._waiting.update(notes)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name="notify")

    async def _run(self) -> None:
        while self._waiting:
            notes, self._waiting = self._waiting, set()
            try:
                await self._send(notes)
            except self._errors as error:
                logger.debug("a hint was not sent", extra={"error": type(error).__name__})
            await asyncio.sleep(PAUSE_SECONDS)

    async def close(self) -> None:
        """Let what waits leave, as far as that takes no more than `CLOSE_SECONDS`."""
        task, self._task = self._task, None
        if task is None or task.done():
            return
        await asyncio.wait({task}, timeout=CLOSE_SECONDS)
        if task.cancel():
            await asyncio.wait({task})
