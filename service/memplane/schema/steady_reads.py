"""A few connections for reads whose plan is the same whatever the statistics say.

The pool has every execution planned anew, because a plan made while a table was small would be kept when it has grown.
Planning takes longer than a read by primary key. So such reads have connections of their own, whose plans are generic
and never scan a table (decision 0023). The statement itself must leave one index to choose: conditions beside the key
stand outside a subquery with OFFSET 0.

Nobody waits here: whoever finds no idle connection reads through the pool, and meanwhile one is opened.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import asyncpg

SERVER_SETTINGS: Final = {"plan_cache_mode": "force_generic_plan", "enable_seqscan": "off"}
"""Given when a connection is made, so nothing is ever set in a session."""

MAX_AGE: Final = 300.0
"""Seconds after which a connection is replaced: roles, addresses and memory do not outlive it for long."""

PAUSE: Final = 5.0
"""Seconds between attempts to connect while they fail."""


CLOSE_SECONDS: Final = 1.0
"""How long `close` waits for a connection that is being made."""


class SteadyReads:
    """At most `size` connections, made by `connect`; 0 turns them off. `clock` is monotonic."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[asyncpg.Connection[Any]]],
        size: int,
        *,
        errors: tuple[type[BaseException], ...],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connect = connect
        self._size = size
        self._errors = errors
        self._clock = clock
        self._idle: list[tuple[asyncpg.Connection[Any], float]] = []
        self._open = 0
        self._opening: asyncio.Task[None] | None = None
        self._not_before = float("-inf")
        self._closed = False

    async def fetch(self, statement: str, arguments: Sequence[object]) -> list[Any] | None:
        """The rows; None when no connection was idle, or the one that was had died.

        Raises `TimeoutError` and `asyncpg.PostgresError`.
        """
        taken = self._take()
        if taken is None:
            self._open_one()
            return None
        connection, until = taken
        reusable = False
        try:
            rows: list[Any] = await connection.fetch(statement, *arguments)
            reusable = True
        except TimeoutError:
            raise
        except asyncpg.DataError:
            # An argument that does not fit: it never left the driver.
            reusable = True
            raise
        except self._errors:
            return None
        except asyncpg.PostgresError:
            reusable = True
            raise
        finally:
            self._give(connection, until, reusable=reusable)
        return rows

    async def close(self) -> None:
        """End all idle connections; those in use end when they are given back. Idempotent."""
        self._closed = True
        if self._opening is not None:
            # The driver leaves a complaint behind when it is cancelled in the middle of a handshake.
            await asyncio.wait([self._opening], timeout=CLOSE_SECONDS)
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        idle, self._idle = self._idle, []
        for connection, _ in idle:
            self._end(connection)

    def _take(self) -> tuple[asyncpg.Connection[Any], float] | None:
        # The one used last: its caches are warm, and those that are not needed grow old.
        while self._idle:
            connection, until = self._idle.pop()
            if not connection.is_closed() and self._clock() < until:
                return connection, until
            self._end(connection)
        return None

    def _give(self, connection: asyncpg.Connection[Any], until: float, *, reusable: bool) -> None:
        if reusable and not self._closed and not connection.is_closed():
            self._idle.append((connection, until))
        else:
            # Also after a cancellation: what the server still sends must not meet the next reader.
            self._end(connection)

    def _end(self, connection: asyncpg.Connection[Any]) -> None:
        self._open -= 1
        with suppress(asyncpg.InterfaceError):
            connection.terminate()

    def _open_one(self) -> None:
        busy = self._opening is not None and not self._opening.done()
        if not busy and not self._closed and self._open < self._size and self._clock() >= self._not_before:
            self._opening = asyncio.get_running_loop().create_task(self._opened(), name="steady-reads")

    async def _opened(self) -> None:
        self._open += 1
        try:
            connection = await self._connect()
        except (*self._errors, asyncpg.PostgresError):
            self._open -= 1
            self._not_before = self._clock() + PAUSE
        except asyncio.CancelledError:
            self._open -= 1
            raise
        else:
            self._give(connection, self._clock() + MAX_AGE, reusable=True)
