"""How this process learns that bodies in its cache are stale: notifications, and polling for those that got lost.

Notifications come on a direct connection of their own (LISTEN needs session state, which a transaction-pooling proxy
has not). They are hints. What makes the cache right is the poll: it reads which memories changed since the snapshot of
the poll before, by `changed_xid`, so it misses nothing whatever the order of commits, and needs no notification at all.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from typing import Any, Final

import asyncpg

from memplane.cache.channel import CLEAR, cache_channel, parse_payload
from memplane.cache.ltm import LtmCache
from memplane.errors import TargetUnavailable
from memplane.schema.database import CONNECT_ERRORS, Database
from memplane.signal import Signal

_log = logging.getLogger(__name__)

MAX_CHANGES: Final = 20_000
"""Changes that one poll reads; when there are more, the cache forgets its bodies instead."""

# Every transaction below the snapshot's xmin has ended, and its changes were visible to that poll.
_CHANGED: Final = f"""
SELECT m.id, m.version, extract(epoch FROM clock_timestamp() - m.updated_at)::float8 AS age
FROM {{schema}}.long_term_memory AS m
WHERE m.changed_xid >= $1::text::xid8 LIMIT {MAX_CHANGES + 1}
"""

_HORIZON: Final = """
SELECT pg_snapshot_xmin(pg_current_snapshot())::text AS horizon,
       (SELECT max(r.id) FROM {schema}.rebuild_run AS r
        WHERE r.target = 'ltm_cache' AND r.state = 'completed') AS cleared
"""


class CacheListener:
    """Keeps one cache fresh. `poll_seconds` apply while notifications come, a fifth of it while they do not."""

    def __init__(
        self,
        database: Database,
        cache: LtmCache,
        *,
        poll_seconds: float = 5.0,
        jitter: Callable[[], float] = lambda: random.uniform(0.8, 1.2),  # noqa: S311 - no secret
    ) -> None:
        self._database = database
        self._cache = cache
        self._poll_seconds = poll_seconds
        self._jitter = jitter
        self._horizon: str | None = None
        self._cleared: int | None = None
        self._listening: asyncpg.Connection[Any] | None = None
        self._wake = asyncio.Event()
        self.polls = 0
        """Polls that ended well, for tests and status."""

    @property
    def listening(self) -> bool:
        """Whether notifications come in."""
        return self._listening is not None and not self._listening.is_closed()

    async def run(self, signal: Signal) -> None:
        """Listen and poll until the signal aborts. Never raises for a database that is away."""
        remove = signal.on_abort(self._wake.set)
        try:
            while not signal.aborted:
                # Before the work, so that what wakes during it is not lost.
                self._wake.clear()
                await self._listen()
                await self._poll()
                seconds = self._poll_seconds if self.listening else self._poll_seconds / 5
                await self._sleep(seconds * self._jitter())
        finally:
            remove()
            await self._stop()

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _listen(self) -> None:
        if self.listening:
            return
        self._listening = None
        try:
            connection = await self._database.connect_direct()
        except TargetUnavailable:
            return
        try:
            # A lost connection is noticed at once, and what it missed is polled.
            connection.add_termination_listener(lambda _: self._wake.set())
            await connection.add_listener(cache_channel(self._database), self._notified)
        except (asyncpg.PostgresError, *CONNECT_ERRORS):
            connection.terminate()
            return
        self._listening = connection

    def _notified(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        if payload == CLEAR:
            self._cache.clear()
            return
        for memory_id, version in parse_payload(str(payload)):
            self._cache.invalidate(memory_id, version)

    async def _poll(self) -> None:
        started = time.monotonic()
        try:
            async with self._database.acquire() as connection:
                now = await connection.fetchrow(self._database.sql(_HORIZON))
                assert now is not None
                if self._horizon is None or now["cleared"] != self._cleared:
                    # Bodies from before the first poll may be stale already; or a rebuild says to forget them all.
                    self._cache.clear()
                    changed: list[Any] = []
                else:
                    changed = await connection.fetch(self._database.sql(_CHANGED), self._horizon)
        except (TargetUnavailable, asyncpg.PostgresError, *CONNECT_ERRORS) as error:
            _log.warning("the cache could not ask what changed", extra={"error": type(error).__name__})
            return
        self._horizon, self._cleared = now["horizon"], now["cleared"]
        self._apply(changed)
        self.polls += 1
        _log.debug("cache poll", extra={"changes": len(changed), "seconds": round(time.monotonic() - started, 3)})

    def _apply(self, changed: list[Any]) -> None:
        if len(changed) > MAX_CHANGES:
            self._cache.clear()
            return
        ages = [row["age"] for row in changed if self._cache.invalidate(row["id"], row["version"])]
        self._cache.version_lag_seconds = max(ages, default=0.0)

    async def _stop(self) -> None:
        connection, self._listening = self._listening, None
        if connection is None or connection.is_closed():
            return
        try:
            await connection.close(timeout=2)
        except (asyncpg.PostgresError, *CONNECT_ERRORS):
            connection.terminate()
