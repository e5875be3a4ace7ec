"""When a failed event is tried again, and when it is given up: pure arithmetic (design section 6.3)."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from memplane.settings import OutboxSettings

MAX_EXPONENT = 60
"""2^60 seconds is past every cap; larger exponents would only overflow."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """`base_seconds` · 2ⁿ, at most `max_seconds`, varied by `jitter` either way; dead after `max_attempts`."""

    base_seconds: float = 1.0
    max_seconds: float = 300.0
    jitter: float = 0.5
    max_attempts: int = 10

    @classmethod
    def of(cls, settings: OutboxSettings) -> RetryPolicy:
        return cls(
            settings.retry_base_seconds, settings.retry_max_seconds, settings.retry_jitter, settings.max_attempts
        )

    def exhausted(self, attempts: int) -> bool:
        """Is an event dead that has been charged `attempts` times?"""
        return attempts >= self.max_attempts

    def delay(self, attempts: int, draw: Callable[[], float] = random.random) -> float:
        """Seconds until the next try of an event that has been charged `attempts` ≥ 1 times; `draw` gives [0, 1)."""
        plain = min(self.max_seconds, self.base_seconds * 2.0 ** min(max(attempts - 1, 0), MAX_EXPONENT))
        return min(self.max_seconds, plain * (1.0 + self.jitter * (2.0 * draw() - 1.0)))
