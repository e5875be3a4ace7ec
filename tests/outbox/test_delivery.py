"""Who is to blame for a failed batch: table tests on a scripted target, without a database."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memplane.outbox.delivery import Delivered, Delivery
from memplane.outbox.events import Event, Family, Target, Task, Truth
from tests.outbox.world import DictTarget

TOKEN = uuid4()


class FixedLease:
    """A lease with a fixed rest."""

    def __init__(self, seconds: float = 60) -> None:
        self.lost: set[int] = set()
        self._seconds = seconds

    def remaining(self) -> float:
        return self._seconds


def task(memory_id: int, version: int = 1) -> Task:
    event = Event(
        id=memory_id * 10, event_id=uuid4(), memory_id=memory_id, tenant="t", user_id="u", version=version,
        event_type="upsert_memory_vector", family=Family.NODE, target=Target.MILVUS, payload={}, attempts=0,
        created_at=datetime.now(UTC), claim_token=TOKEN,
    )  # fmt: skip
    return Task(event, Truth(memory_id, live=True, version=version))


async def deliver(
    target: DictTarget, count: int, *, lease: FixedLease | None = None, call_timeout: float = 0.2
) -> Delivered:
    result = Delivered()
    delivery = Delivery(target, call_timeout=call_timeout)
    await delivery.deliver([task(n) for n in range(1, count + 1)], lease or FixedLease(), result)  # type: ignore[arg-type]
    return result


def fates(result: Delivered) -> dict[str, list[int]]:
    return {
        "done": sorted(task.event.memory_id for task, _ in result.outcomes),
        "failed": sorted(failure.event.memory_id for failure in result.failures),
        "returned": sorted(event.memory_id for event in result.returned),
    }


async def test_a_good_batch_takes_one_call() -> None:
    target = DictTarget()
    assert fates(await deliver(target, 4)) == {"done": [1, 2, 3, 4], "failed": [], "returned": []}
    assert len(target.calls) == 1


async def test_a_named_culprit_is_charged_and_the_rest_goes_on() -> None:
    target = DictTarget()
    target.refuse = {2, 3}
    result = await deliver(target, 4)
    assert fates(result) == {"done": [1, 4], "failed": [2, 3], "returned": []}
    assert {failure.reason for failure in result.failures} == {"cannot hold it"}
    assert target.health_calls == 0


async def test_an_unnamed_culprit_is_found_by_halving() -> None:
    target = DictTarget()
    target.poison = {77}
    result = await deliver(target, 200)
    assert fates(result)["failed"] == [77]
    assert len(fates(result)["done"]) == 199
    assert len(target.calls) <= 17
    assert [failure.reason for failure in result.failures] == ["RuntimeError"], "no driver text"


@settings(max_examples=40, deadline=None)
@given(count=st.integers(1, 40), data=st.data())
def test_exactly_the_culprits_are_charged(count: int, data: st.DataObject) -> None:
    import asyncio

    ids = st.sets(st.integers(1, count), max_size=4)
    target = DictTarget()
    target.poison, target.refuse = data.draw(ids), data.draw(ids)
    found = fates(asyncio.run(deliver(target, count)))
    guilty = sorted(target.poison | target.refuse)
    assert found == {"done": [n for n in range(1, count + 1) if n not in guilty], "failed": guilty, "returned": []}


async def test_an_unhealthy_target_charges_nobody() -> None:
    target = DictTarget()
    target.available = False
    result = await deliver(target, 4)
    assert fates(result) == {"done": [], "failed": [], "returned": [1, 2, 3, 4]}
    assert result.unhealthy
    assert not result.uncertain
    assert len(target.calls) == 1


async def test_a_call_that_timed_out_is_read_back() -> None:
    target = DictTarget()
    target.hang = {3}

    async def applied_before_it_hangs(tasks: object) -> None:
        target.held[1] = 1

    target.before = applied_before_it_hangs  # type: ignore[assignment]
    result = await deliver(target, 4, call_timeout=0.05)
    assert fates(result) == {"done": [1, 2, 4], "failed": [3], "returned": []}
    assert result.outcomes[0][0].event.memory_id == 1
    assert result.outcomes[0][1].detail == "found by reading back"


async def test_a_timed_out_call_that_cannot_be_read_back_is_uncertain() -> None:
    target = DictTarget()
    target.hang = {1}

    async def goes_away(tasks: object) -> None:
        target.available = True

    async def no_answer(tasks: object, *, timeout: float) -> list[bool]:
        raise ConnectionError

    target.before, target.settled = goes_away, no_answer  # type: ignore[assignment, method-assign]
    result = await deliver(target, 2, call_timeout=0.05)
    assert fates(result) == {"done": [], "failed": [], "returned": [1, 2]}
    assert result.uncertain


async def test_what_was_lost_before_its_call_is_left_alone() -> None:
    target, lease = DictTarget(), FixedLease()
    lease.lost = {10, 20}
    result = await deliver(target, 3, lease=lease)
    assert fates(result) == {"done": [3], "failed": [], "returned": []}
    assert set(result.attempted) == {30}
    assert result.dropped() == []


async def test_what_is_lost_after_a_failed_call_is_dropped_and_named() -> None:
    """The call that failed may have written it, over what its new owner wrote."""
    target, lease = DictTarget(), FixedLease()
    target.refuse = {1}

    async def lose(tasks: object) -> None:
        lease.lost = {20}

    target.before = lose  # type: ignore[assignment]
    result = await deliver(target, 3, lease=lease)
    assert fates(result) == {"done": [3], "failed": [1], "returned": []}
    assert [event.id for event in result.dropped()] == [20]


@pytest.mark.parametrize("rest", [0, -1])
async def test_without_a_lease_nothing_is_called(rest: float) -> None:
    target = DictTarget()
    result = await deliver(target, 2, lease=FixedLease(rest))
    assert fates(result) == {"done": [], "failed": [], "returned": [1, 2]}
    assert target.calls == []


async def test_a_call_gets_no_more_time_than_the_lease_has_left() -> None:
    target = DictTarget()
    target.hang = {1}
    result = await deliver(target, 1, lease=FixedLease(0.05), call_timeout=60)
    assert fates(result)["failed"] == [1]


async def test_a_wrong_number_of_outcomes_is_the_targets_fault() -> None:
    target = DictTarget()

    async def too_few(tasks: object, *, timeout: float) -> list[object]:
        return []

    target.project = too_few  # type: ignore[assignment, method-assign]
    result = await deliver(target, 1)
    assert [failure.reason for failure in result.failures] == ["0 outcomes for 1 tasks"]
