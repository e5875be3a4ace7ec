"""What a rebuild says: while it works, and at its end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, TypeAlias

from memplane.outbox.events import Target

log = logging.getLogger(__name__)


class Stage(StrEnum):
    """The steps of a rebuild, each resumable."""

    FILL = "fill"
    """Milvus: copy every live memory into the new collection. Neo4j: write every object under the rebuild's mark."""
    SWEEP = "sweep"
    """Neo4j: what has no mark is looked up in the truth, and goes if it is not there."""
    UNMARK = "unmark"
    """Neo4j: take the marks off."""
    REPAIR = "repair"
    """Milvus: compare the new collection with the truth until nothing differs; then it is switched."""
    VERIFY = "verify"
    """Compare what is in use with the truth until nothing differs."""
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Progress:
    """`done` of about `total` memories in this stage; `note` says what the rebuild waits for, if it waits."""

    stage: Stage
    done: int
    total: int
    note: str = ""


ProgressCallback: TypeAlias = Callable[[Progress], None]


def silent(_: Progress) -> None:
    """Nobody watches."""


class Logged:
    """A `ProgressCallback` that logs each stage, and every `seconds` within it, for machines; then it tells `other`."""

    def __init__(
        self,
        target: Target,
        other: ProgressCallback = silent,
        *,
        seconds: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._target = target
        self._other = other
        self._seconds = seconds
        self._clock = clock
        self._stage: Stage | None = None
        self._next = clock()

    def __call__(self, progress: Progress) -> None:
        now = self._clock()
        if progress.stage is not self._stage or now >= self._next:
            self._stage, self._next = progress.stage, now + self._seconds
            log.info(
                "rebuild progress",
                extra={
                    "target": self._target.value,
                    "stage": progress.stage.value,
                    "done": progress.done,
                    "total": progress.total,
                    "note": progress.note,
                },
            )
        self._other(progress)


@dataclass(slots=True)
class Report:
    """The outcome of a call. `cancelled`: the rebuild is unfinished and goes on when it is run again."""

    run_id: int
    target: Target
    state: Literal["completed", "cancelled"] = "completed"
    generation: int | None = None
    collection: str = ""
    retired: str = ""
    """The collection that was in use before."""
    copied: int = 0
    """Memories that this call has written."""
    swept: int = 0
    """Objects without a memory that this call has removed, or had removed by a repair (Neo4j)."""
    repaired: int = 0
    """Repair events that this call has inserted."""
    resumed: int = 0
    """How often the rebuild was taken up again."""
