"""A target that is too slow for full batches is given smaller ones, and larger ones again when it can."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from memplane.outbox.events import Task
from memplane.outbox.pace import Pace
from memplane.schema.database import Database
from tests.outbox.test_worker import done, running
from tests.outbox.world import DictTarget, create, quick, rows


def test_half_after_a_late_call_double_after_one_in_time() -> None:
    pace = Pace(100)
    pace.in_time()
    assert pace.limit == 100
    for expected in (50, 25, 12, 6, 3, 1, 1):
        pace.late()
        assert pace.limit == expected
    for expected in (2, 4, 8, 16, 32, 64, 100, 100):
        pace.in_time()
        assert pace.limit == expected


class SlowTarget(DictTarget):
    """Takes its time for each row, to write and to read."""

    seconds = 0.02

    async def project(self, tasks, *, timeout):  # type: ignore[no-untyped-def]
        await asyncio.sleep(self.seconds * len(tasks))
        return await super().project(tasks, timeout=timeout)

    async def settled(self, tasks: Sequence[Task], *, timeout: float) -> Sequence[bool]:
        await asyncio.sleep(self.seconds * len(tasks))
        return await super().settled(tasks, timeout=timeout)


async def test_a_backlog_drains_at_a_target_that_is_too_slow_for_full_batches(database: Database) -> None:
    """100 rows take two seconds, a call has 0.3: at full size none would ever end."""
    await create(database, 100)
    target = SlowTarget()
    settings = quick(batch_size=100, concurrency=1, call_timeout=0.3, breaker_seconds=0.05)
    async with running(database, target, settings):
        await done(database)
    assert max(len(call) for call in target.calls) <= 15
    assert all(row["attempts"] == 0 for row in await rows(database)), "slowness is charged to nobody"
