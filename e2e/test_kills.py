"""Killed processes and databases: everything acknowledged stays, everything converges, nobody restarts anything."""

from __future__ import annotations

import pytest

from e2e.conftest import SYSTEM, Space
from e2e.waiting import eventually


def test_killed_workers_and_a_killed_postgres_lose_nothing(space: Space) -> None:
    space.kube.apply_backend(space.name, "memory", space.spec())
    space.ready()
    memory = space.memory()
    ids = memory.write(*(f"fact number {number} before the kill" for number in range(200)))
    for target in ("milvus", "neo4j"):
        for pod in space.kube.pods(space.name, f"memplane.dev/component=worker-{target}"):
            space.kube.kill_pod(space.name, pod["metadata"]["name"])
    (postgres,) = space.kube.pods(SYSTEM, "memplane.dev/trial=postgres")
    space.kube.kill_pod(SYSTEM, postgres["metadata"]["name"])

    def writes_again() -> bool:
        memory.write("a fact after the kill")
        return True

    eventually("writes are accepted again", writes_again, timeout=300, every=2)
    got = memory.node("MEMORY.GET", {"ids": ids})
    assert len(got) == len(ids), "an acknowledged write is gone"
    space.converged(timeout=480)
    for target in ("milvus", "neo4j"):
        report = space.audit(target)
        assert sum(report["mismatches"].values()) == 0, report


@pytest.mark.full
@pytest.mark.parametrize("store", ["milvus", "neo4j"])
def test_a_killed_projection_target_catches_up(space: Space, store: str) -> None:
    space.kube.apply_backend(space.name, "memory", space.spec())
    space.ready()
    memory = space.memory()
    memory.write(*(f"before {number}" for number in range(50)))
    selector = f"memplane.dev/trial={store}"
    (pod,) = space.kube.pods(SYSTEM, selector)
    space.kube.kill_pod(SYSTEM, pod["metadata"]["name"])
    ids = memory.write(*(f"meanwhile {number}" for number in range(50)))
    assert len(memory.node("MEMORY.GET", {"ids": ids})) == 50, "the truth answers without its projections"

    def back() -> bool:
        others = [one for one in space.kube.pods(SYSTEM, selector) if one["metadata"]["uid"] != pod["metadata"]["uid"]]
        conditions = [one for other in others for one in other["status"].get("conditions") or ()]
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

    # What dies may still take what is written in its last second: everything can have converged before it is back.
    eventually(f"{store} is back", back, timeout=300)
    space.converged(timeout=480)
    report = space.audit(store)
    assert sum(report["mismatches"].values()) == 0, report


@pytest.mark.full
def test_killed_service_pods_come_back(space: Space) -> None:
    space.kube.apply_backend(space.name, "memory", space.spec(projections={}, service={"replicas": 2}))
    space.ready()
    memory = space.memory()
    (kept,) = memory.write("kept")
    for pod in space.kube.pods(space.name, "memplane.dev/component=service"):
        space.kube.kill_pod(space.name, pod["metadata"]["name"])

    def answers() -> bool:
        return bool(memory.node("MEMORY.GET", {"ids": [kept]}))

    eventually("the service answers again", answers, timeout=240)
