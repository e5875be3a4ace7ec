"""Work by key: coalesced, delayed, and each key handled by one worker at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class WorkQueue(Generic[K]):
    """Keys to look at. A key added while it is handled is handled once more afterwards."""

    def __init__(self) -> None:
        self._ready: asyncio.Queue[K] = asyncio.Queue()
        self._waiting: set[K] = set()
        self._active: set[K] = set()
        self._again: set[K] = set()
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, key: K) -> None:
        """Handle the key soon."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        if key in self._active:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.put_nowait(key)

    def add_later(self, key: K, seconds: float) -> None:
        """Handle the key after a delay, unless it is added before; the earlier of two timers wins."""
        loop = asyncio.get_running_loop()
        timer = self._timers.get(key)
        if timer is not None and timer.when() <= loop.time() + seconds:
            return
        if timer is not None:
            timer.cancel()
        self._timers[key] = loop.call_later(seconds, self.add, key)

    async def take(self) -> K:
        """The next key; call `done` for it afterwards."""
        key = await self._ready.get()
        self._waiting.discard(key)
        self._active.add(key)
        return key

    def done(self, key: K, *, failed: bool = False) -> None:
        """The key was handled. A failure brings it back with a doubling delay, 1 s to 60 s."""
        self._active.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)
        if failed:
            count = self._failures[key] = self._failures.get(key, 0) + 1
            self.add_later(key, min(60.0, 2.0 ** (count - 1)))
        else:
            self._failures.pop(key, None)
