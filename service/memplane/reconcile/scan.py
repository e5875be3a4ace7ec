"""Where a run's candidates come from: everything by ranges of ids, or the memories that have changed.

While one page is compared the next one is read, so that servers and this process work at the same time. At most two
pages are in memory.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_right
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from memplane.outbox.events import Edge
from memplane.reconcile.diff import Difference, diff_edges
from memplane.reconcile.inventory import HeldEdges, Inventory, Side
from memplane.reconcile.truth import LAST_ID, Row, among, edges_between, edges_of, page
from memplane.schema.database import Database

PAGE = 4000
"""Memories of a page at most, whatever the target says."""

CHANGED_PAGE = 2000
"""Changed memories of a page: each is named in the query."""


@dataclass(frozen=True, slots=True)
class Page:
    """What differs in one range of ids, or among the changed memories of it, as far as a quick look tells."""

    high: int
    """The range ends here, this id included."""
    ids: Sequence[int]
    """The live memories that were compared, in id order."""
    candidates: Sequence[Difference]
    """In id order."""
    unchecked: Sequence[int] = ()
    """Those without a stored embedding, in id order."""


@dataclass(frozen=True, slots=True)
class _Read:
    """Both sides of a page."""

    high: int
    rows: Sequence[Row]
    side: Side
    wanted_edges: Mapping[int, Sequence[Edge]]
    held_edges: HeldEdges


class Scan(Protocol):
    """A source of pages."""

    async def total(self) -> int:
        """About how many memories there are to compare."""
        ...

    async def read(self, low: int) -> _Read:
        """Both sides of the page that begins above `low`; its `high` is LAST_ID when it is the last one."""
        ...


class FullScan:
    """Everything, by ranges of ids: what the target holds and the truth does not is found, too."""

    def __init__(self, database: Database, inventory: Inventory, total: int) -> None:
        self._database = database
        self._inventory = inventory
        self._total = total
        self._limit = min(PAGE, inventory.page)

    async def total(self) -> int:
        return self._total

    async def read(self, low: int) -> _Read:
        inventory = self._inventory
        rows = await page(self._database, inventory.needs, inventory.vectors, low, self._limit)
        high = int(rows[-1]["id"]) if len(rows) == self._limit else LAST_ID
        side, held_edges = await asyncio.gather(inventory.between(low, high), inventory.edges_between(low, high))
        wanted = await edges_between(self._database, low, high) if inventory.holds_edges else {}
        return _Read(high, rows, side, wanted, held_edges)


class ChangedScan:
    """The memories of a sorted list of ids, live or not."""

    def __init__(self, database: Database, inventory: Inventory, ids: array[int]) -> None:
        self._database = database
        self._inventory = inventory
        self._ids = ids
        self._limit = min(PAGE, CHANGED_PAGE, inventory.page)

    async def total(self) -> int:
        return len(self._ids)

    async def read(self, low: int) -> _Read:
        inventory, start = self._inventory, bisect_right(self._ids, low)
        chosen = list(self._ids[start : start + self._limit])
        high = chosen[-1] if start + self._limit < len(self._ids) else LAST_ID
        rows = await among(self._database, inventory.needs, inventory.vectors, chosen) if chosen else ()
        if not chosen:
            return _Read(high, rows, _Nothing(), {}, HeldEdges())
        side, held_edges = await asyncio.gather(inventory.among(chosen), inventory.edges_of(chosen))
        wanted = await edges_of(self._database, chosen) if inventory.holds_edges else {}
        return _Read(high, rows, side, wanted, held_edges)


class _Nothing:
    def differences(self, rows: Sequence[Row]) -> Sequence[Difference]:
        return ()


async def pages(scan: Scan, inventory: Inventory, position: int) -> AsyncGenerator[Page]:
    """The pages above `position`. Close the iterator when it is left early."""
    reading = asyncio.ensure_future(scan.read(position))
    try:
        while True:
            read = await reading
            last = read.high == LAST_ID
            if not last:
                reading = asyncio.ensure_future(scan.read(read.high))
                await asyncio.sleep(0)  # let it send its first query before this process computes
            yield _compared(read, inventory)
            if last:
                return
    finally:
        reading.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await reading


def _compared(read: _Read, inventory: Inventory) -> Page:
    candidates = list(read.side.differences(read.rows))
    if inventory.holds_edges:
        candidates += diff_edges(read.wanted_edges, read.held_edges.by_source, read.held_edges.bare, inventory.backend)
        candidates.sort(key=lambda candidate: candidate.memory_id)
    # What the target does not hold yet has no vector to compare: its event is on the way, or it is missing.
    odd = {candidate.memory_id for candidate in candidates}
    unchecked = [
        row["id"]
        for row in read.rows
        if inventory.vectors is not None and row["vector"] is None and row["id"] not in odd
    ]
    return Page(read.high, [row["id"] for row in read.rows], candidates, unchecked)


def batches(candidates: Sequence[Difference], size: int) -> list[Sequence[Difference]]:
    """Portions of at least `size` candidates, the last one aside; all candidates of a memory are in one portion."""
    found: list[Sequence[Difference]] = []
    start = 0
    while start < len(candidates):
        end = min(start + size, len(candidates))
        while end < len(candidates) and candidates[end].memory_id == candidates[end - 1].memory_id:
            end += 1
        found.append(candidates[start:end])
        start = end
    return found


def within(unchecked: Sequence[int], ids: Sequence[int], start: int, end: int | None) -> int:
    """How many of the sorted `unchecked` are among `ids[start:end]`."""
    low = bisect_right(unchecked, ids[start - 1]) if start > 0 else 0
    high = len(unchecked) if end is None else bisect_right(unchecked, ids[end - 1]) if end > 0 else 0
    return max(0, high - low)
