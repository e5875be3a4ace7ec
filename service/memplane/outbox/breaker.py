"""The breaker of one target: after a failure nothing is claimed until a health call succeeds (design section 6.4)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable


class Breaker:
    """Closed: batches flow. Open: none is claimed. When its pause is over it is half open: one health call decides."""

    def __init__(
        self,
        pause_seconds: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._pause = pause_seconds
        self._clock = clock
        self._draw = draw
        self._open_until: float | None = None

    @property
    def closed(self) -> bool:
        return self._open_until is None

    @property
    def half_open(self) -> bool:
        """Is it time for the health call?"""
        return self._open_until is not None and self._clock() >= self._open_until

    def remaining(self) -> float:
        """Seconds until the health call; 0 when closed or half open."""
        return 0.0 if self._open_until is None else max(0.0, self._open_until - self._clock())

    def trip(self) -> bool:
        """Open for a pause (± 20 %, so that workers do not probe in step). True if it was closed."""
        was_closed = self.closed
        self._open_until = self._clock() + self._pause * (0.8 + 0.4 * self._draw())
        return was_closed

    def reset(self) -> None:
        """The health call succeeded: close."""
        self._open_until = None
