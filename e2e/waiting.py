"""Waiting for the cluster: ask until it is so, or say what was seen last."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(what: str, check: Callable[[], T], *, timeout: float = 180, every: float = 1.0) -> T:
    """The first true answer of `check`. An `AssertionError` or a false answer means not yet; others are raised."""
    end, last = time.monotonic() + timeout, "it was false"
    while True:
        try:
            answer = check()
            if answer:
                return answer
            last = f"it was {answer!r}"
        except AssertionError as error:
            last = str(error) or "an assertion failed"
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {timeout:g} s; last: {last}")
        time.sleep(every)


def always(what: str, check: Callable[[], bool], *, seconds: float, every: float = 0.5) -> None:
    """Fail as soon as `check` is false within the time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert check(), what
        time.sleep(every)
