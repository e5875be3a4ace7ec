"""The lease of one batch as its worker sees it: renewed in the background, and never overestimated.

The end of the lease is counted from before the statement that granted it was sent, by the worker's monotonic clock, so
the database's own end is always later. Source: design section 6.2.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from types import TracebackType

from memplane.outbox.claim import renew
from memplane.outbox.events import Event
from memplane.outbox.patience import DATABASE_ERRORS
from memplane.schema.database import Database

SAFETY = 0.1
"""Fraction of the lease that no target call may reach into."""


class Lease:
    """An async context: the lease is renewed while inside. Leave it before the batch is acknowledged."""

    def __init__(
        self,
        database: Database,
        events: Sequence[Event],
        *,
        granted_at: float,
        lease_seconds: float,
        renew_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._events = events
        self._seconds = lease_seconds
        self._every = min(renew_seconds, lease_seconds / 3)
        self._clock = clock
        self._until = granted_at + lease_seconds
        self._renewal: asyncio.Task[None] | None = None
        self.lost: set[int] = set()
        """Ids of events that were found to be somebody else's."""

    def remaining(self) -> float:
        """Seconds for which a call may last that starts now; not positive when the lease is as good as over."""
        return self._until - self._clock() - self._seconds * SAFETY

    async def __aenter__(self) -> Lease:
        self._renewal = asyncio.create_task(self._renew(), name="outbox-lease")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.wait({self._renewal})

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._every)
            await self.renew_now()

    async def renew_now(self) -> None:
        """Extend the lease. When the database is away it simply is not extended."""
        asked_at = self._clock()
        held = [event for event in self._events if event.id not in self.lost]
        try:
            ours = await renew(self._database, held, lease_seconds=self._seconds)
        except DATABASE_ERRORS:
            return
        self.lost.update(event.id for event in held if event.id not in ours)
        self._until = asked_at + self._seconds
