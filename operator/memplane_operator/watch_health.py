"""Notices a stalled watch: the regular LIST sees versions of objects that the watch has not delivered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from typing import Any

Key = tuple[str, str]


class WatchHealth:
    """Compares what the watch delivered with what a LIST found. `stalled()` after `limit` seconds of lagging behind."""

    def __init__(self, limit: float, clock: Callable[[], float] = monotonic) -> None:
        self._limit, self._clock = limit, clock
        self._watched: dict[Key, str] = {}
        self._behind: dict[Key, tuple[str, float]] = {}

    def watched(self, body: Mapping[str, Any], *, gone: bool = False) -> None:
        """The watch delivered this state of an object."""
        metadata = body["metadata"]
        key = (metadata["namespace"], metadata["name"])
        self._behind.pop(key, None)
        if gone:
            self._watched.pop(key, None)
        else:
            self._watched[key] = metadata["resourceVersion"]

    def listed(self, bodies: Iterable[Mapping[str, Any]]) -> None:
        """A LIST found these objects."""
        now = self._clock()
        present = set()
        for body in bodies:
            metadata = body["metadata"]
            key = (metadata["namespace"], metadata["name"])
            present.add(key)
            if self._watched.get(key) == metadata["resourceVersion"]:
                self._behind.pop(key, None)
            elif key not in self._behind:
                self._behind[key] = (metadata["resourceVersion"], now)
        for key in [key for key in self._behind if key not in present]:
            del self._behind[key]

    def forget(self) -> None:
        """A new watch begins."""
        self._watched.clear()
        self._behind.clear()

    def stalled(self) -> bool:
        """Whether some object has been behind for longer than the limit."""
        now = self._clock()
        return any(now - since > self._limit for _, since in self._behind.values())
