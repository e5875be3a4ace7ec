"""How a search that left out a projection tells whoever answers the caller (design section 8, `X-Memory-Degraded`).

A `MemorySearchProvider` returns hits and nothing else, so what was left out travels beside the call: the service opens
`collect_degraded()` around it, the search plugin calls `report_degraded(target)` within. Without a collector the report
goes nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_collected: ContextVar[set[str] | None] = ContextVar("memplane_degraded", default=None)


def report_degraded(target: str) -> None:
    """Say that the present call goes on without `target` (`milvus`, `neo4j`, `embedding` …)."""
    collected = _collected.get()
    if collected is not None:
        collected.add(target)


@contextmanager
def collect_degraded() -> Iterator[set[str]]:
    """The targets that calls within this block, tasks that they start included, report."""
    collected: set[str] = set()
    token = _collected.set(collected)
    try:
        yield collected
    finally:
        _collected.reset(token)
