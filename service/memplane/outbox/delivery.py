"""One batch against one target: who succeeded, who is to blame, and who is innocent (design sections 6.2 and 6.4).

A batch fails as a whole. If the target is healthy nevertheless, someone in the batch is the culprit: the batch is
split in halves until that one is alone, and only it is charged. If the target is not healthy, nobody is. A call that
timed out may have been applied, or may still be: it is read back before anything else is decided.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from memplane.errors import TargetUnavailable
from memplane.outbox.events import Event, Outcome, ProjectionTarget, Task, TaskFailed, Verdict
from memplane.outbox.lease import Lease
from memplane.outbox.logs import batch_fields
from memplane.outbox.probes import Point, Probe, no_probe
from memplane.outbox.putback import Failure

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Delivered:
    """What became of a batch at its target. An event whose lease was found lost before its call is in none of these."""

    outcomes: list[tuple[Task, Outcome]] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    """Refused by a healthy target: to be charged."""
    returned: list[Event] = field(default_factory=list)
    """Not projected, through no fault of theirs: to be given back uncharged."""
    unready: list[Event] = field(default_factory=list)
    """Their memory waits for its hash (an old application changed it): to be given back for a while."""
    unhealthy: bool = False
    uncertain: bool = False
    """A call timed out and could not be read back, so it may still take effect."""
    late: bool = False
    """A call timed out."""
    attempted: dict[int, Task] = field(default_factory=dict)
    """By event id: tasks that were part of at least one call."""

    def dropped(self) -> list[Event]:
        """Events that were part of a call, which may have taken effect, and then of no further one: lost meanwhile."""
        ended = {task.event.id for task, _ in self.outcomes}
        ended.update(failure.event.id for failure in self.failures)
        ended.update(event.id for event in (*self.returned, *self.unready))
        return [task.event for event_id, task in self.attempted.items() if event_id not in ended]


class Delivery:
    """Delivers batches to one target. Holds no state between them."""

    def __init__(self, target: ProjectionTarget, *, call_timeout: float, probe: Probe = no_probe) -> None:
        self._target = target
        self._call_timeout = call_timeout
        self._probe = probe

    async def deliver(self, tasks: Sequence[Task], lease: Lease, result: Delivered) -> None:
        """Call the target until every task has an outcome, a failure or is to be given back.

        `result` is filled as it goes, so that it tells the truth even when this is cancelled.
        """
        parts: list[Sequence[Task]] = [tasks]
        while parts:
            part = parts.pop()
            if lease.lost:
                part = [task for task in part if task.event.id not in lease.lost]
            if not part:
                continue
            timeout = min(self._call_timeout, lease.remaining())
            if result.unhealthy or timeout <= 0:
                result.returned += [task.event for task in part]
                continue
            parts += await self._attempt(part, timeout, result)

    async def compare(self, tasks: Sequence[Task], lease: Lease, result: Delivered) -> None:
        """Shadow: compare the target with the truth, write nothing (design section 6.9).

        `unchanged` are equal, `applied` would have been written.
        """
        if not tasks:
            return
        timeout = min(self._call_timeout, max(0.0, lease.remaining()))
        try:
            async with asyncio.timeout(timeout):
                same = await self._target.settled(tasks, timeout=timeout)
        except Exception as error:  # noqa: BLE001 - a target that cannot be read is treated as unhealthy, whatever it raises
            logger.warning(
                "the target cannot be compared",
                extra={"target": self._target.name.value, "error": type(error).__name__},
            )
            result.returned += [task.event for task in tasks]
            result.unhealthy = True
            return
        verdicts = [Outcome(Verdict.UNCHANGED if equal else Verdict.APPLIED, "shadow") for equal in same]
        result.outcomes += zip(tasks, verdicts, strict=True)

    async def _attempt(self, part: Sequence[Task], timeout: float, result: Delivered) -> list[Sequence[Task]]:
        """One call. Returns the parts that are to be tried next."""
        await self._probe(Point.BEFORE_CALL)
        result.attempted.update((task.event.id, task) for task in part)
        try:
            async with asyncio.timeout(timeout):
                outcomes = await self._target.project(part, timeout=timeout)
        except TaskFailed as refusal:
            return await self._refused(part, refusal, result)
        except TimeoutError:
            return await self._timed_out(part, timeout, result)
        except TargetUnavailable as error:
            return await self._troubled(part, error.reason, result)
        except Exception as error:  # noqa: BLE001 - a target may raise anything; it is blamed on a task or the target
            return await self._troubled(part, type(error).__name__, result)
        await self._probe(Point.AFTER_CALL)
        if len(outcomes) != len(part):
            return await self._troubled(part, f"{len(outcomes)} outcomes for {len(part)} tasks", result)
        result.outcomes += zip(part, outcomes, strict=True)
        return []

    async def _refused(self, part: Sequence[Task], refusal: TaskFailed, result: Delivered) -> list[Sequence[Task]]:
        culprits = [task for task in part if task.event.memory_id == refusal.memory_id]
        if not culprits:
            return await self._troubled(part, refusal.reason, result)
        result.failures += [Failure(task.event, refusal.reason) for task in culprits]
        return [[task for task in part if task.event.memory_id != refusal.memory_id]]

    async def _timed_out(self, part: Sequence[Task], timeout: float, result: Delivered) -> list[Sequence[Task]]:
        """Read back what the call may have done."""
        result.late = True
        try:
            async with asyncio.timeout(timeout):
                settled = await self._target.settled(part, timeout=timeout)
        except Exception as error:  # noqa: BLE001 - a target that cannot be read is treated as unhealthy, whatever it raises
            logger.warning(
                "a call timed out and cannot be read back",
                extra=batch_fields([task.event for task in part], error=type(error).__name__),
            )
            result.unhealthy = result.uncertain = True
            result.returned += [task.event for task in part]
            return []
        done = Outcome(Verdict.APPLIED, "found by reading back")
        result.outcomes += [(task, done) for task, is_settled in zip(part, settled, strict=True) if is_settled]
        rest = [task for task, is_settled in zip(part, settled, strict=True) if not is_settled]
        return await self._troubled(rest, "the call timed out", result) if rest else []

    async def _troubled(self, part: Sequence[Task], reason: str, result: Delivered) -> list[Sequence[Task]]:
        """A call failed and nobody is named: ask for the target's health, then split or give back."""
        if not await is_healthy(self._target, self._call_timeout):
            result.unhealthy = True
            result.returned += [task.event for task in part]
            return []
        if len(part) == 1:
            result.failures.append(Failure(part[0].event, reason))
            return []
        middle = len(part) // 2
        return [part[middle:], part[:middle]]


async def is_healthy(target: ProjectionTarget, timeout: float) -> bool:
    """The target's own answer within `timeout` seconds; silence and errors count as no."""
    try:
        async with asyncio.timeout(timeout):
            return await target.healthy()
    except Exception as error:  # noqa: BLE001 - `healthy` promises not to raise; one that does is not healthy
        logger.warning("a health call failed", extra={"target": target.name.value, "error": type(error).__name__})
        return False
