"""Consolidating scopes: window by window, plan, apply, and plan again what has moved in between.

Source: seed `002` section 7; design section 7.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from memplane.consolidation.apply import Applied, PlanConflict, apply
from memplane.consolidation.memory import Snapshot
from memplane.consolidation.plan import Plan, Step, plan
from memplane.consolidation.policy import MergePolicy
from memplane.consolidation.rules import Findings, find
from memplane.consolidation.snapshot import EVERYTHING, Window, read_window
from memplane.contracts import Scope
from memplane.plugins.postgres.writing import Writing
from memplane.schema.database import Database
from memplane.settings import ConsolidationSettings, Rule
from memplane.signal import Signal

log = logging.getLogger(__name__)

ROUNDS: Final = 100
"""Plans for one window that each did something; then the next window, and the rest waits for another run."""


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be done, and how. `rules` may differ from those of the settings."""

    settings: ConsolidationSettings
    rules: frozenset[Rule]
    policy: MergePolicy


@dataclass(slots=True)
class Report:
    """What a run did. `by_rule` counts memories; `unfinished` windows were given up after conflicts."""

    scopes: int = 0
    looked_at: int = 0
    updated: int = 0
    superseded: int = 0
    expired: int = 0
    conflicts: int = 0
    unfinished: int = 0
    skipped: int = 0
    cancelled: bool = False
    following: int | None = None
    """After which id the next window of the scope begins, when a run was to end before it."""
    by_rule: dict[str, int] = field(default_factory=dict)

    @property
    def changed(self) -> int:
        return self.updated + self.superseded + self.expired


ProgressCallback = Callable[[Report], None]


async def make_plan(database: Database, scope: Scope, job: Job, *, after: int = EVERYTHING) -> tuple[Plan, int | None]:
    """The plan for one window of a scope, and the id after which the next window begins (None: there is none)."""
    found: list[Findings] = []

    def members(snapshot: Snapshot) -> Collection[int]:
        found.append(find(snapshot, job.settings, job.rules, job.policy))
        return found[-1].members | {memory_id for memory_id, _ in found[-1].decayed}

    window: Window = await read_window(
        database,
        scope,
        after=after,
        size=job.settings.window,
        members=members,
        with_vectors="near" in job.rules or "policy" in job.rules,
        with_contents=job.policy.needs_content,
    )
    made = await asyncio.to_thread(plan, window.snapshot, job.settings, job.rules, job.policy, found[-1])
    return made, window.following


async def plans(database: Database, scope: Scope, job: Job, signal: Signal | None = None) -> AsyncIterator[Plan]:
    """The plans of a scope, window by window; nothing is changed."""
    after: int | None = EVERYTHING
    while after is not None and not (signal is not None and signal.aborted):
        made, after = await make_plan(database, scope, job, after=after)
        yield made


async def consolidate(
    writing: Writing,
    scope: Scope,
    job: Job,
    *,
    report: Report | None = None,
    after: int = EVERYTHING,
    windows: int | None = None,
    signal: Signal | None = None,
    progress: ProgressCallback | None = None,
) -> Report:
    """Consolidate one scope; adds to `report` and returns it. Stops between transactions when `signal` aborts.

    From the id `after` on; `windows` at most, all by default.

    Raises like `apply`, except for conflicts: those are planned again, `settings.attempts` times at most.
    """
    total = report if report is not None else Report()
    total.scopes += 1
    following: int | None = after
    done = 0
    while following is not None and not total.cancelled and (windows is None or done < windows):
        following = await _window(writing, scope, job, following, total, signal, progress)
        done += 1
    total.following = following
    return total


async def _window(  # noqa: PLR0917 - one window of a run, with all that the run has
    writing: Writing,
    scope: Scope,
    job: Job,
    after: int,
    total: Report,
    signal: Signal | None,
    progress: ProgressCallback | None,
) -> int | None:
    """Plan and apply until nothing is left to do; returns where the next window begins.

    Steps of one plan share no memory, so a batch that was overtaken says nothing of the others: they are applied, and
    what is left is planned again.
    """
    conflicts, batch, first = 0, job.settings.batch_size, True
    for _ in range(ROUNDS):
        made, following = await make_plan(writing.database, scope, job, after=after)
        total.looked_at += made.looked_at if first else 0
        first, applied, overtaken = False, False, False
        for steps in batches(made.steps, batch):
            if signal is not None and signal.aborted:
                total.cancelled = True
                return after
            try:
                _add(total, scope, await apply(writing, scope, steps))
                applied = True
            except PlanConflict as conflict:
                overtaken = True
                total.conflicts += 1
                log.info("a batch was overtaken, it is planned again", extra=_ids(scope, conflict.memory_id))
            if progress is not None:
                progress(total)
        if overtaken:
            conflicts += 1
            if conflicts >= job.settings.attempts:
                total.unfinished += 1
                break
            # The writers that were met go on writing: smaller transactions meet fewer of them.
            batch = max(2, batch // 4)
            await asyncio.sleep(random.uniform(0, 0.02 * 2 ** min(conflicts, 5)))  # noqa: S311 - jitter
        elif not (made.deferred and applied):
            total.skipped += len(made.skipped)
            break
    if progress is not None:
        progress(total)
    return following


def batches(steps: Sequence[Step], size: int) -> Iterator[list[Step]]:
    """Whole steps, as many as lock `size` memories at most; a larger step comes alone."""
    batch: list[Step] = []
    held = 0
    for step in steps:
        if batch and held + step.size > size:
            yield batch
            batch, held = [], 0
        batch.append(step)
        held += step.size
    if batch:
        yield batch


def _add(total: Report, scope: Scope, applied: Applied) -> None:
    total.updated += applied.updated
    total.superseded += applied.superseded
    total.expired += applied.expired
    for rule, count in applied.by_rule.items():
        total.by_rule[rule] = total.by_rule.get(rule, 0) + count
    log.info(
        "memories were consolidated",
        extra={
            **_ids(scope, None),
            "updated": applied.updated,
            "superseded": applied.superseded,
            "expired": applied.expired,
        },
    )


def _ids(scope: Scope, memory_id: int | None) -> dict[str, object]:
    return {"tenant": scope.tenant, "user_id": scope.user} | ({} if memory_id is None else {"memory_id": memory_id})
