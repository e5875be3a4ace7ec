"""Workers follow the backlog: from zero, out, and back to zero, and nothing is lost on the way."""

from __future__ import annotations

import time

from e2e.conftest import Space
from e2e.waiting import eventually


def replicas(space: Space) -> int:
    deployment = space.kube.deployment(space.name, "memory-worker-milvus")
    assert deployment is not None
    return int(deployment["spec"].get("replicas", 1))


def test_workers_scale_from_zero_to_many_and_back(space: Space) -> None:
    scaling = {"minReplicas": 0, "maxReplicas": 3, "targetBacklog": 50, "scaleDownSeconds": 15}
    # Small batches and one in flight: the backlog outlasts a few polls of the autoscaler.
    worker = {"autoscaling": scaling, "batchSize": 1, "concurrency": 1}
    spec = space.spec()
    spec["projections"] = {"milvus": {**spec["projections"]["milvus"], "worker": worker}}
    space.kube.apply_backend(space.name, "memory", spec)
    space.ready()
    assert space.kube.condition(space.name, "memory", "AutoscalingAvailable")["status"] == "True"
    eventually("no work, no workers", lambda: replicas(space) == 0, timeout=180)

    memory = space.memory()
    for part in range(4):
        memory.write(*(f"fact {part}-{number} about topic {number % 7}" for number in range(250)))
    most = 0
    end = time.monotonic() + 240
    while time.monotonic() < end and most < 2:
        # More work comes in, so that a fast machine does not finish before the autoscaler looks again.
        memory.write(*(f"another fact {number}" for number in range(50)))
        most = max(most, replicas(space))
        time.sleep(1)
    assert most >= 2, f"the workers only grew to {most}"
    space.converged(timeout=480)
    eventually("no work, no workers", lambda: replicas(space) == 0, timeout=180)
    report = space.audit("milvus")
    assert sum(report["mismatches"].values()) == 0, report


def test_switching_between_fixed_and_autoscaled_never_dips(space: Space) -> None:
    def spec(worker: dict[str, object]) -> dict[str, object]:
        base = space.spec()
        base["projections"] = {"milvus": {**base["projections"]["milvus"], "worker": worker}}
        return base

    space.kube.apply_backend(space.name, "memory", spec({"replicas": 2}))
    space.ready()
    seen: list[int] = []

    def settles(check_seconds: float) -> None:
        end = time.monotonic() + check_seconds
        while time.monotonic() < end:
            seen.append(replicas(space))
            time.sleep(0.5)

    space.kube.apply_backend(space.name, "memory", spec({"autoscaling": {"minReplicas": 2, "maxReplicas": 3}}))
    settles(25)
    space.kube.apply_backend(space.name, "memory", spec({"replicas": 2}))
    settles(25)
    assert min(seen) >= 2, f"the number of workers dipped: {seen}"
