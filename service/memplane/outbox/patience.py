"""Waiting out an absent database: jittered back-off, one log line per change of state, and no exit (design section 6).

What went wrong is logged by the error's class alone: driver texts may carry addresses and credentials.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import asyncpg

from memplane.errors import TargetUnavailable
from memplane.schema.database import CONNECT_ERRORS
from memplane.signal import Signal

logger = logging.getLogger(__name__)

T = TypeVar("T")

DATABASE_ERRORS: tuple[type[BaseException], ...] = (TargetUnavailable, asyncpg.PostgresError, *CONNECT_ERRORS)
"""Whatever a statement may raise: the server away, a standby, a statement timeout, a deadlock, a missing table."""


class GaveUp(Exception):  # noqa: N818 - not an error: the process is being stopped
    """The database stayed away until the worker was told to stop waiting."""


class Patience:
    """Repeats database operations until they succeed. All loops of a process share one, so that it logs once."""

    def __init__(
        self,
        *,
        first_seconds: float = 0.1,
        longest_seconds: float = 10.0,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._draw = draw
        self._first = first_seconds
        self._longest = longest_seconds
        self._away = False

    @property
    def away(self) -> bool:
        """Did the last operation fail?"""
        return self._away

    async def insist(self, operation: Callable[[], Awaitable[T]], until: Signal) -> T:
        """The result of the first attempt that succeeds. Raises `GaveUp` after a failure once `until` is aborted."""
        pause = self._first
        while True:
            try:
                result = await operation()
            except DATABASE_ERRORS as error:
                self._failed(error)
            else:
                self._succeeded()
                return result
            if until.aborted:
                raise GaveUp
            await rest(until, pause * (0.5 + self._draw()))
            pause = min(self._longest, pause * 2)

    def _failed(self, error: BaseException) -> None:
        if not self._away:
            self._away = True
            logger.warning("the database does not serve; waiting for it", extra={"error": type(error).__name__})

    def _succeeded(self) -> None:
        if self._away:
            self._away = False
            logger.info("the database serves again")


async def rest(until: Signal, seconds: float) -> None:
    """Sleep, but no longer than until the signal is aborted."""
    if until.aborted or seconds <= 0:
        return
    try:
        async with asyncio.timeout(seconds):
            await until.wait()
    except TimeoutError:
        return
