"""Points in the life of a batch at which a crash test may stop the process. In production nothing happens there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import TypeAlias


class Point(StrEnum):
    """The worker's part of the five points of the seed (`002` section 15.4)."""

    BEFORE_CALL = "before_call"
    AFTER_CALL = "after_call"
    BEFORE_ACKNOWLEDGEMENT = "before_acknowledgement"


Probe: TypeAlias = Callable[[Point], Awaitable[None]]
"""Awaited at each point of each batch."""


async def no_probe(point: Point) -> None:
    """The probe of production: does nothing."""
