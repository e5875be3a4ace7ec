"""Where task documents live: one Protocol, so that SQLite and PostgreSQL keep the same promises.

A change reads the document, computes the next one by a pure function and stores it with revision + 1 and an event that
holds it whole, in one transaction: all or nothing, whoever is killed when.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from memplane.recovery.documents import Job

Change = Callable[[Job], Job]
"""Present document → next document; raises `RecoveryError` when the change is not allowed."""


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One line of a task's history."""

    kind: str
    data: Any


class JobStore(Protocol):
    """Task documents and their events. Every method is one transaction.

    A change or note with `owner` is fenced: it raises `JobBusy` unless the task's lease is that owner's in the same
    transaction, so that a process which has lost its lease without knowing it (it was stopped, say) writes nothing.
    Without `owner` anybody may write: a person decides while nobody, or somebody, runs the task.
    """

    async def open(self) -> None: ...
    async def close(self) -> None: ...
    async def insert(self, job: Job) -> None:
        """Store a new task with its event `created`. Raises `RecoveryError` when the id is taken."""
        ...

    async def load(self, job_id: str) -> Job:
        """The document. Raises `RecoveryError`: unknown task, unsupported schema."""
        ...

    async def change(self, job_id: str, kind: str, change: Change, *, owner: str | None = None) -> Job:
        """Apply a change under the task's lock; returns the stored document."""
        ...

    async def record(self, job_id: str, kind: str, data: Any, *, owner: str | None = None) -> None:
        """Add an event that changes nothing. Raises `RecoveryError`: unknown task."""
        ...

    async def events(self, job_id: str) -> Sequence[JobEvent]: ...
    async def jobs(self, *, stages: Sequence[str] = (), limit: int = 1000, after: str = "") -> Sequence[Job]:
        """Documents by id, optionally of some stages, with ids above `after`."""
        ...

    async def acquire(self, job_id: str, owner: str, seconds: float) -> bool:
        """Take or renew the task's lease for `seconds`; False while somebody else's has not ended.

        Raises `RecoveryError`: unknown task."""
        ...

    async def release(self, job_id: str, owner: str) -> None:
        """Give the lease back, if it is ours."""
        ...
