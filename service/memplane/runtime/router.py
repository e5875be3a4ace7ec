"""Which worker takes a call: a pure choice over what is registered. Source: RT-03, RT-04, RT-06, M-62.

In this order: it exposes the node, is available and has capacity; nearest first (this process, this host, elsewhere);
then the one that was chosen longest ago, so that replicas rotate. A pinned call never falls back.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from memplane.runtime.context import WorkerAddress
from memplane.runtime.errors import NoWorkerAvailable


class Candidate(Protocol):
    """What routing looks at. `chosen` is a growing stamp of its last choice per node, absent = never."""

    @property
    def address(self) -> WorkerAddress: ...
    @property
    def capabilities(self) -> frozenset[str]: ...
    @property
    def available(self) -> bool: ...
    @property
    def active(self) -> int: ...
    @property
    def concurrency(self) -> int | None: ...
    @property
    def chosen(self) -> dict[str, int]: ...


C = TypeVar("C", bound=Candidate)


def select(candidates: Iterable[C], node: str, *, host_id: str, process_id: str) -> C:
    """The worker for this call; of a pinned one alone when it is the only candidate. Raises `NoWorkerAvailable`."""
    best: C | None = None
    best_rank = (0, 0)
    for candidate in candidates:
        if not _can_take(candidate, node):
            continue
        rank = (distance(candidate.address, host_id, process_id), candidate.chosen.get(node, 0))
        if best is None or rank < best_rank:
            best, best_rank = candidate, rank
    if best is None:
        raise NoWorkerAvailable(node)
    return best


def distance(address: WorkerAddress, host_id: str, process_id: str) -> int:
    """0 in this process, 1 on this host, 2 elsewhere."""
    if address.host_id != host_id:
        return 2
    return 0 if address.process_id == process_id else 1


def _can_take(candidate: Candidate, node: str) -> bool:
    if not candidate.available or node not in candidate.capabilities:
        return False
    return candidate.concurrency is None or candidate.active < candidate.concurrency
