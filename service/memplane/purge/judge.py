"""Whether a tombstone may go for good: the three conditions of seed `002` section 10.3. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from memplane.outbox.events import Target


class Verdict(StrEnum):
    """What becomes of a tombstone now; everything but `READY` waits for something."""

    READY = "ready"
    RETAINED = "retained"
    """Its retention has not passed."""
    UNFINISHED = "unfinished_events"
    """An event of it is pending or in flight."""
    DEAD = "dead_events"
    """An event of it was given up: replay or discard it."""
    SHADOW = "shadow"
    """A target only compares, or owes a repair for what it only compared: nobody removes the object there."""
    NO_RUN = "no_full_run"
    """Some target has had no complete, error-free full reconciliation since the delete was processed."""
    NAMED = "named_by_a_run"
    """That reconciliation has met the memory in a target: it needs another one."""


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A tombstone and what the outbox knows of it, in one snapshot.

    `reached`: targets with an event of the delete or a later one. `last_processed`: when the last known event was
    finished. Events are pruned after a while, so both may be empty.
    """

    memory_id: int
    version: int
    deleted_at: datetime
    settled_at: datetime | None
    unfinished: int
    dead: int
    reached: frozenset[Target]
    last_processed: datetime | None

    @property
    def noted(self) -> bool:
        """Whether `settled_at` is of this delete: an application of old may take a delete back, and delete again."""
        return self.settled_at is not None and self.settled_at >= self.deleted_at


def settled(tombstone: Tombstone, targets: Collection[Target], now: datetime) -> datetime | None:
    """By when every event of the delete was finished; None while one is not.

    What is known exactly is taken; when events have been pruned already it is now: later than true, so never too early.
    """
    if tombstone.unfinished or tombstone.dead:
        return None
    noted = tombstone.settled_at if tombstone.noted else None
    known = [one for one in (noted, tombstone.last_processed) if one is not None]
    complete = noted is not None or tombstone.reached >= set(targets)
    return max(known) if complete and known else now


def judge(
    tombstone: Tombstone,
    *,
    now: datetime,
    cutoff: datetime,
    targets: Collection[Target],
    runs: Mapping[Target, datetime],
    named: Collection[int],
    shadow: bool,
) -> Verdict:
    """The verdict at `now`. `cutoff`: what was deleted later is retained. `runs`: start of the newest clean full run of
    each projection that has one. `named`: ids that one of these runs names. `shadow`: a target is in Shadow."""
    if tombstone.deleted_at >= cutoff:
        return Verdict.RETAINED
    if tombstone.unfinished:
        return Verdict.UNFINISHED
    if tombstone.dead:
        return Verdict.DEAD
    if shadow:
        return Verdict.SHADOW
    since = settled(tombstone, targets, now)
    assert since is not None
    projections = [target for target in targets if target is not Target.LTM_CACHE]
    if any(target not in runs or runs[target] <= since for target in projections):
        return Verdict.NO_RUN
    return Verdict.NAMED if tombstone.memory_id in named else Verdict.READY
