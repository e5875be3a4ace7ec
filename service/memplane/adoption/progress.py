"""What an adoption says about how far it is."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

log: Final = logging.getLogger(__name__)

Report = Callable[[str, int, int], None]
"""Called with the stage, what is done of it, and about how much there is."""

LOG_SECONDS: Final = 10.0


class LoggedProgress:
    """Logs at most every ten seconds, and each change of the stage; hands everything on to `show`."""

    def __init__(self, show: Report | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._show = show
        self._clock = clock
        self._stage = ""
        self._logged_at = 0.0

    def __call__(self, stage: str, done: int, total: int) -> None:
        if self._show is not None:
            self._show(stage, done, total)
        if stage != self._stage or self._clock() - self._logged_at >= LOG_SECONDS:
            self._stage, self._logged_at = stage, self._clock()
            log.info("adoption", extra={"stage": stage, "done": done, "total": total})
