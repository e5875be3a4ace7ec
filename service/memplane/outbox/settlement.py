"""What is written down about a batch after its target was called: completed, charged, given back, repaired.

Every step is fenced by the claim's token. An event that turns out not to be ours any more, and whose target was called,
may have overwritten what its new owner wrote: it gets a repair event (design section 6.2).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from memplane.outbox.claim import complete
from memplane.outbox.delivery import Delivered
from memplane.outbox.enqueue import Repair, enqueue_repairs
from memplane.outbox.events import BatchReport, Event, Outcome, Target, Task, Verdict
from memplane.outbox.logs import event_fields
from memplane.outbox.metrics import Metrics
from memplane.outbox.patience import Patience
from memplane.outbox.putback import Failure, Fate, fail, give_back
from memplane.outbox.retry import RetryPolicy
from memplane.schema.database import Database
from memplane.signal import Signal

logger = logging.getLogger(__name__)


UNREADY_SECONDS = 1.0
"""Pause before an event whose memory has no hash yet is looked at again; the hash comes with an event of its own."""


class Settlement:
    """Writes batches down. Database operations are repeated until they succeed or `abandon` is aborted (`GaveUp`)."""

    def __init__(
        self,
        database: Database,
        target: Target,
        policy: RetryPolicy,
        *,
        patience: Patience,
        abandon: Signal,
        metrics: Metrics | None = None,
        uncertain_delay_seconds: float = 30.0,
    ) -> None:
        self._database = database
        self._target = target
        self._policy = policy
        self._patience = patience
        self._abandon = abandon
        self._metrics = metrics
        self._uncertain_delay = uncertain_delay_seconds

    async def settle(self, delivered: Delivered, *, shadow: bool = False) -> BatchReport:
        """End the claims of everything in `delivered`. Order: completions first, they free memories."""
        report = BatchReport(self._target)
        lost: list[Event] = []
        if delivered.outcomes:
            lost += await self._complete(delivered.outcomes, report, shadow=shadow)
        if delivered.failures:
            lost += await self._fail(delivered.failures, report)
        if delivered.returned:
            # An uncertain call may still take effect: its events wait it out.
            delay = self._uncertain_delay if delivered.uncertain else 0.0
            lost += await self.give_back(delivered.returned, delay_seconds=delay)
        if delivered.unready:
            lost += await self.give_back(delivered.unready, delay_seconds=UNREADY_SECONDS)
        lost += delivered.dropped()
        overwritten = [delivered.attempted[event.id] for event in lost if event.id in delivered.attempted]
        report.lost = len(lost)
        if overwritten and not shadow:
            await self._repair(overwritten)
        return report

    async def _complete(
        self, outcomes: Sequence[tuple[Task, Outcome]], report: BatchReport, *, shadow: bool
    ) -> list[Event]:
        events = [task.event for task, _ in outcomes]
        different = {task.event.id for task, outcome in outcomes if outcome.verdict is not Verdict.UNCHANGED}
        done = await self._patience.insist(
            lambda: complete(self._database, events, shadow=shadow, different=different if shadow else ()),
            self._abandon,
        )
        report.processed = len(done.ids)
        if shadow:
            self._compared(outcomes, done.ids)
        for task, outcome in outcomes:
            report.verdicts[outcome.verdict] = report.verdicts.get(outcome.verdict, 0) + 1
            if outcome.verdict is Verdict.CONFLICT or outcome.verdict is Verdict.AHEAD:
                self._notable(task, outcome)
        ours = events if len(done.ids) == len(events) else [event for event in events if event.id in done.ids]
        if not shadow and done.at is not None:
            self._observe(ours, done.at)
        return [] if ours is events else [event for event in events if event.id not in done.ids]

    def _compared(self, outcomes: Sequence[tuple[Task, Outcome]], done: Collection[int]) -> None:
        """What Shadow mode found; each difference is logged, since finding them is what it is for."""
        counts = {"equal": 0, "different": 0}
        for task, outcome in outcomes:
            if task.event.id not in done:
                continue
            equal = outcome.verdict is Verdict.UNCHANGED
            counts["equal" if equal else "different"] += 1
            if not equal:
                logger.debug(
                    "shadow: the target differs", extra=event_fields(task.event, truth_version=task.truth.version)
                )
        if self._metrics is not None:
            for result, count in counts.items():
                self._metrics.shadowed.labels(self._target.value, result).inc(count)
        logger.info("shadow: compared, nothing written", extra={"target": self._target.value, **counts})

    def _observe(self, events: Sequence[Event], at: datetime) -> None:
        if self._metrics is not None:
            self._metrics.latency.observe(self._target, [(at - event.created_at).total_seconds() for event in events])
        if logger.isEnabledFor(logging.DEBUG):
            for event in events:
                logger.debug("event processed", extra=event_fields(event))

    def _notable(self, task: Task, outcome: Outcome) -> None:
        if outcome.verdict is Verdict.CONFLICT:
            if self._metrics is not None:
                self._metrics.hash_conflicts.labels(self._target.value).inc()
            logger.error(
                "the target held this version with another hash; overwritten from the truth",
                extra=event_fields(task.event, truth_version=task.truth.version),
            )
        else:
            logger.error(
                "the target is ahead of the truth", extra=event_fields(task.event, truth_version=task.truth.version)
            )

    async def _fail(self, failures: Sequence[Failure], report: BatchReport) -> list[Event]:
        fates = await self._patience.insist(lambda: fail(self._database, failures, self._policy), self._abandon)
        report.dead = sum(fate is Fate.DEAD for fate in fates.values())
        report.retried = sum(fate is Fate.PENDING for fate in fates.values())
        if self._metrics is not None:
            self._metrics.retries.labels(self._target.value).inc(len(fates))
        for failure in failures:
            fate = fates.get(failure.event.id)
            level = logging.ERROR if fate is Fate.DEAD else logging.WARNING
            outcome = fate.value if fate is not None else "lost"
            logger.log(
                level, "an event failed", extra=event_fields(failure.event, reason=failure.reason, outcome=outcome)
            )
        return _not_in(fates, [failure.event for failure in failures])

    async def give_back(self, events: Sequence[Event], *, delay_seconds: float = 0.0) -> list[Event]:
        """Return events uncharged. The result: those that were not ours any more."""
        fates = await self._patience.insist(
            lambda: give_back(self._database, events, delay_seconds=delay_seconds), self._abandon
        )
        return _not_in(fates, events)

    async def _repair(self, tasks: Sequence[Task]) -> None:
        repairs = [late_repair(task) for task in tasks]

        async def insert() -> int:
            async with self._database.transaction() as connection:
                return await enqueue_repairs(connection, self._database, repairs)

        inserted = await self._patience.insist(insert, self._abandon)
        for task in tasks:
            logger.warning("came back after its lease was lost; repairs what it may have overwritten",
                           extra=event_fields(task.event, repairs=inserted))  # fmt: skip


def _not_in(fates: Mapping[int, Fate], events: Sequence[Event]) -> list[Event]:
    return [event for event in events if event.id not in fates]


def late_repair(task: Task) -> Repair:
    """The repair of what a late worker may have overwritten with `task`."""
    event, truth = task.event, task.truth
    return Repair(
        target=event.target,
        memory_id=event.memory_id,
        tenant=event.tenant,
        user_id=event.user_id,
        expected_version=truth.version,
        operation="upsert" if truth.live else "delete",
        family=event.family,
        late_claim=event.claim_token,
    )
