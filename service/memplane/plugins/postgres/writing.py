"""What WRITE, UPDATE and DELETE share: which targets to notify, and what a commit looked like."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from memplane.outbox.enqueue import Change, enqueue
from memplane.outbox.events import Target
from memplane.schema.committed import Committed, OnCommit
from memplane.schema.database import Connection, Database
from memplane.schema.tracing import current_traceparent

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Writing:
    """How a process changes the truth. `embedding` is the (model, revision) that new texts will be embedded with."""

    database: Database
    targets: frozenset[Target]
    require_expected_version: bool = False
    embedding: tuple[str, str] | None = None
    on_commit: OnCommit | None = None

    async def enqueue(self, connection: Connection, changes: Sequence[Change]) -> None:
        """Insert the events of `changes` into the running transaction."""
        await enqueue(connection, self.database, changes, targets=self.targets, traceparent=current_traceparent.get())

    def committed(self, rows: Sequence[Committed]) -> None:
        """Tell this process's cache; its failure is its own (seed `002` section 11.1)."""
        if self.on_commit is None or not rows:
            return
        try:
            self.on_commit(rows)
        except Exception as error:  # noqa: BLE001 - a foreign callback; the commit has happened whatever it does
            _log.warning(
                "the cache did not take a commit",
                extra={"error": type(error).__name__, "memory_ids": [row.memory_id for row in rows[:20]]},
            )


def deleted(changes: Sequence[Change]) -> list[Committed]:
    """What the cache learns of tombstones; sources that lost edges are no news for it."""
    return [
        Committed(change.memory_id, change.tenant, change.user_id, change.version, None)
        for change in changes
        if change.operation == "delete"
    ]
