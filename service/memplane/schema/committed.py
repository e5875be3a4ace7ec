"""What a process learns from its own commits, for read-your-writes (seed `002` section 11.1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from memplane.contracts import MemoryItem


@dataclass(frozen=True, slots=True)
class Committed:
    """One memory as a transaction of this process left it. `item` is None when it was deleted."""

    memory_id: int
    tenant: str
    user_id: str
    version: int
    item: MemoryItem | None
    expires_at: datetime | None = None


OnCommit = Callable[[Sequence[Committed]], None]
"""Called after the commit, within the call that made it. It must not block; what it raises never fails that call."""
