"""Going through all memories in id order: a few pages at a time, at most so many memories a second."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from memplane.outbox.patience import rest
from memplane.rebuild import runs
from memplane.rebuild.outlast import outlast
from memplane.rebuild.pages import Page, next_page, total
from memplane.rebuild.report import Progress, ProgressCallback
from memplane.rebuild.runs import Run
from memplane.schema.database import Database
from memplane.settings import RebuildSettings
from memplane.signal import Signal

Work: TypeAlias = Callable[[Page], Awaitable[int]]
"""What is done with a page; returns how many repairs it took."""


@dataclass(slots=True)
class Filled:
    """What one call of `fill` has done. `complete`: it was not stopped before the last page."""

    memories: int = 0
    repairs: int = 0
    complete: bool = False


class Pace:
    """Lets at most `per_second` memories start; 0 is no limit."""

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._clock = clock
        self._free_at = clock()

    def wait_seconds(self, memories: int) -> float:
        """How long to wait before `memories` more may start; they count as started."""
        if self._per_second <= 0:
            return 0.0
        now = self._clock()
        begins = max(now, self._free_at)
        self._free_at = begins + memories / self._per_second
        return begins - now


async def fill(
    database: Database,
    run: Run,
    settings: RebuildSettings,
    work: Work,
    *,
    signal: Signal,
    progress: ProgressCallback,
) -> Filled:
    """Do `work` with every page above `run.position`, and record the position below which all is done.

    Pages in flight end before a stop takes effect. Raises what `work` raises, `RebuildLost`.
    """
    filled = Filled()
    run.total = max(run.total, await total(database))
    pace, flight = Pace(settings.rate), deque[tuple[Page, asyncio.Task[int]]]()
    after: int | None = run.position
    try:
        while True:
            while after is not None and not signal.aborted and len(flight) < settings.concurrency:
                page = await next_page(database, after, settings.page_size)
                after = None if page is None else page.high
                if page is not None and await _may_start(pace, page, signal):
                    flight.append(
                        (page, asyncio.create_task(_patient(work, page, signal), name="memplane-rebuild-page"))
                    )
            if not flight:
                break
            await _land(database, run, *flight.popleft(), filled=filled, progress=progress)
    finally:
        for _, task in flight:
            task.cancel()
        await asyncio.gather(*(task for _, task in flight), return_exceptions=True)
    filled.complete = after is None and not signal.aborted
    return filled


async def _may_start(pace: Pace, page: Page, signal: Signal) -> bool:
    await rest(signal, pace.wait_seconds(len(page.ids)))
    return not signal.aborted


async def _patient(work: Work, page: Page, signal: Signal) -> int:
    return await outlast(lambda: work(page), signal)


async def _land(
    database: Database,
    run: Run,
    page: Page,
    task: asyncio.Task[int],
    *,
    filled: Filled,
    progress: ProgressCallback,
) -> None:
    """The oldest page in flight is done: everything up to its end is."""
    filled.repairs += await task
    filled.memories += len(page.ids)
    run.position, run.done = page.high, run.done + len(page.ids)
    run.total = max(run.total, run.done)
    await runs.save(database, run)
    progress(Progress(run.stage, run.done, run.total))
