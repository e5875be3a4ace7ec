"""How fast a run may go: so many memories a second, on average since it began (setting `reconcile.rows_per_second`)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from memplane.signal import Signal


def pause_seconds(compared: int, elapsed: float, rows_per_second: float) -> float:
    """How long to wait after `compared` memories in `elapsed` seconds; 0 without a limit (`rows_per_second` 0)."""
    if rows_per_second <= 0:
        return 0.0
    return max(0.0, compared / rows_per_second - elapsed)


class Pace:
    """Waits after each page until the limit allows the next one; a signal ends the wait."""

    def __init__(self, rows_per_second: float, signal: Signal, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rows_per_second
        self._signal = signal
        self._clock = clock
        self._began = clock()
        self._compared = 0

    async def keep(self, compared: int) -> None:
        """Wait if the memories so far, `compared` more of them now, were compared too fast."""
        self._compared += compared
        pause = pause_seconds(self._compared, self._clock() - self._began, self._rate)
        if pause <= 0:
            return
        try:
            async with asyncio.timeout(pause):
                await self._signal.wait()
        except TimeoutError:
            pass
