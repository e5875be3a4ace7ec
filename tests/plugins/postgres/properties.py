"""Hypothesis over asynchronous code: examples are drawn in a thread, and run on the test's own loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy

T = TypeVar("T")


async def holds(strategy: SearchStrategy[T], check: Callable[[T], Awaitable[None]], *, examples: int = 100) -> None:
    """Run `check` on drawn examples; fails with the smallest one that fails."""
    loop = asyncio.get_running_loop()

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(strategy)
    def run(example: T) -> None:
        async def once() -> None:
            await check(example)

        asyncio.run_coroutine_threadsafe(once(), loop).result(60)

    await asyncio.to_thread(run)
