"""Queue, leadership and watch health, with a clock of their own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from memplane_operator.cluster import Cluster, plural_in
from memplane_operator.errors import ApiError, Conflict, NotFound
from memplane_operator.leader import Leadership
from memplane_operator.watch_health import WatchHealth
from memplane_operator.work_queue import WorkQueue


async def test_a_key_is_coalesced_and_handled_once_more_when_added_meanwhile() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    queue.add("a")
    assert await queue.take() == "a"
    queue.add("a")
    assert len(queue) == 0, "never two workers on one key"
    queue.done("a")
    assert await queue.take() == "a"
    queue.done("a")
    assert len(queue) == 0


async def test_the_earlier_of_two_timers_wins_and_adding_cancels_them() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_later("a", 60)
    queue.add_later("a", 0)
    assert await asyncio.wait_for(queue.take(), 1) == "a"
    queue.done("a")
    queue.add_later("b", 60)
    queue.add("b")
    assert await queue.take() == "b"
    assert queue._timers == {}


async def test_a_failed_key_comes_back_by_itself() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    await queue.take()
    queue.done("a", failed=True)
    assert await asyncio.wait_for(queue.take(), 5) == "a"


class Leases(Cluster):
    """An API server that only knows one Lease."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.down = False

    async def get(self, resource: Any, namespace: str | None, name: str) -> dict[str, Any]:
        if self.down:
            raise ApiError(0, "GET")
        if self.lease is None:
            raise NotFound(404, "GET")
        return {"metadata": dict(self.lease["metadata"]), "spec": dict(self.lease["spec"])}

    async def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        return self.store(manifest)

    async def replace(self, resource: Any, manifest: dict[str, Any]) -> dict[str, Any]:
        if self.down:
            raise ApiError(0, "PUT")
        assert self.lease is not None
        if manifest["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise Conflict(409, "PUT")
        return self.store(manifest)

    def store(self, manifest: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        self.lease = {
            "metadata": {**manifest["metadata"], "resourceVersion": str(self.version)},
            "spec": dict(manifest["spec"]),
        }
        return self.lease


@pytest.fixture
def time() -> list[float]:
    return [1000.0]


def candidate(leases: Leases, name: str, time: list[float]) -> Leadership:
    return Leadership(leases, "system", name, 15, clock=lambda: time[0])


async def test_one_leads_and_the_other_takes_over_a_whole_lease_after_the_last_renewal(time: list[float]) -> None:
    leases = Leases()
    first, second = candidate(leases, "first", time), candidate(leases, "second", time)
    assert await first._try() is True
    assert await second._try() is False
    time[0] += 14
    assert await first._try() is True, "renewed"
    time[0] += 14
    assert await second._try() is False, "the Lease changed since it looked"
    time[0] += 16
    assert await second._try() is True
    assert await first._try() is False


async def test_a_leader_that_cannot_renew_stops_before_its_lease_ends(time: list[float]) -> None:
    leases = Leases()
    leader = candidate(leases, "first", time)
    leader._lease = 3
    task = asyncio.create_task(leader.run())
    await asyncio.wait_for(leader.leading.wait(), 2)
    leases.down = True
    time[0] += 2.5
    await asyncio.wait_for(leader.lost.wait(), 5)
    assert not leader.leading.is_set()
    await task


async def test_a_released_lease_is_free_at_once(time: list[float]) -> None:
    leases = Leases()
    first, second = candidate(leases, "first", time), candidate(leases, "second", time)
    assert await first._try()
    first.leading.set()
    await first.release()
    assert await second._try() is True


def body(name: str, version: str) -> dict[str, Any]:
    return {"metadata": {"namespace": "n", "name": name, "resourceVersion": version}}


def test_a_watch_that_lags_the_list_for_too_long_is_stalled(time: list[float]) -> None:
    health = WatchHealth(60, clock=lambda: time[0])
    health.watched(body("a", "1"))
    health.listed([body("a", "2"), body("b", "3")])
    time[0] += 61
    assert health.stalled()
    health.watched(body("a", "2"))
    health.watched(body("b", "3"))
    assert not health.stalled()


def test_objects_that_went_away_do_not_stall_the_watch(time: list[float]) -> None:
    health = WatchHealth(60, clock=lambda: time[0])
    health.listed([body("a", "2")])
    health.listed([])
    time[0] += 61
    assert not health.stalled()


@pytest.mark.parametrize(
    ("path", "plural"),
    [
        ("/api/v1/namespaces/agents/secrets/pg", "secrets"),
        ("/api/v1/namespaces/agents/configmaps", "configmaps"),
        ("/api/v1/namespaces/agents", "namespaces"),
        ("/apis/apps/v1/namespaces/agents/deployments/memory", "deployments"),
        ("/apis/memplane.dev/v1alpha1/memorybackends", "memorybackends"),
        ("/apis/memplane.dev/v1alpha1/namespaces/a/memorybackends/m/status", "memorybackends"),
        ("/apis/keda.sh/v1alpha1", "discovery"),
    ],
)
def test_requests_are_counted_by_kind(path: str, plural: str) -> None:
    assert plural_in(path) == plural
