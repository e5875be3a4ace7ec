"""Waiting while a target is away: a rebuild is long, and a restart of a server in its middle is nothing unusual."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from memplane.errors import TargetUnavailable
from memplane.outbox.patience import rest
from memplane.signal import Signal

log = logging.getLogger(__name__)

T = TypeVar("T")

AWAY_SECONDS = 300.0
"""How long a step waits for a target that is away before the rebuild stops; it can be run again later."""

LONGEST_PAUSE = 5.0


async def outlast(
    step: Callable[[], Awaitable[T]],
    signal: Signal,
    *,
    seconds: float = AWAY_SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> T:
    """The result of `step`, tried again while its target does not answer, for `seconds` or until `signal` aborts.

    Only for steps that may be repeated. Raises the last `TargetUnavailable`.
    """
    pause, until = 0.5, clock() + seconds
    while True:
        try:
            return await step()
        except (TargetUnavailable, TimeoutError) as error:
            if signal.aborted or clock() >= until:
                if isinstance(error, TargetUnavailable):
                    raise
                raise TargetUnavailable("the target", "a step does not end in time") from None
            log.warning("a step is tried again", extra={"error": type(error).__name__})
        await rest(signal, pause * (0.5 + random.random()))  # noqa: S311 - jitter, not a secret
        pause = min(LONGEST_PAUSE, pause * 2)
