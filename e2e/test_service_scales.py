"""The service follows its CPU by a HorizontalPodAutoscaler; the operator leaves the number to it."""

from __future__ import annotations

import time

import pytest

from e2e.calls import Memory
from e2e.cluster import E2ECluster, ensure_metrics
from e2e.conftest import Space
from e2e.kube import JSON
from e2e.waiting import eventually

pytestmark = pytest.mark.full

SCALING = {"minReplicas": 1, "maxReplicas": 2, "targetCpuPercent": 40, "scaleDownSeconds": 60}
"""The window outlasts the pauses between two bursts of load."""
SERVICE = {"autoscaling": SCALING, "resources": {"requests": {"cpu": "250m"}}}
"""40 % are 100m: an idle service needs a fraction of it, a client that reads without a pause several times as much."""


@pytest.fixture(scope="module")
def metrics(cluster: E2ECluster) -> None:
    ensure_metrics(cluster)


def deployment(space: Space) -> JSON:
    found = space.kube.deployment(space.name, "memory")
    assert found is not None
    return found


def replicas(space: Space) -> int:
    return int(deployment(space)["spec"]["replicas"])


def autoscaler(space: Space) -> JSON:
    return space.kube.plain(space.kube.autoscaling.read_namespaced_horizontal_pod_autoscaler("memory", space.name))


def owners_of_replicas(space: Space) -> set[str]:
    """Who has written `spec.replicas` of the Deployment and still owns it."""
    return {
        entry["manager"]
        for entry in deployment(space)["metadata"]["managedFields"]
        if "f:replicas" in entry.get("fieldsV1", {}).get("f:spec", {})
    }


def load(memory: Memory) -> None:
    """A burst of reads without a pause; every one must be answered."""
    call = ("/v1/nodes/MEMORY.QUERY", {"limit": 50})
    statuses = [status for status, _ in memory.post(*[call] * 60)]
    assert set(statuses) == {200}, f"reads under load answered {sorted(set(statuses))}"


@pytest.mark.usefixtures("metrics")
def test_the_service_scales_on_cpu_and_the_operator_does_not_fight(space: Space) -> None:
    kube = space.kube
    kube.apply_backend(space.name, "memory", space.spec(projections={}, service=SERVICE))
    space.ready()
    memory = space.memory()
    ids = memory.write(*(f"fact {number} about topic {number % 7}" for number in range(100)))

    def measured() -> bool:
        status = autoscaler(space)["status"]
        active = [one for one in status.get("conditions", []) if one["type"] == "ScalingActive"]
        assert [one["status"] for one in active] == ["True"], active
        return replicas(space) == 1

    eventually("the autoscaler sees the CPU of one idle pod", measured, timeout=300)

    def grown() -> bool:
        load(memory)
        return replicas(space) == 2

    eventually("load doubles the service", grown, timeout=240, every=0)

    def both_serve() -> bool:
        load(memory)
        return bool(deployment(space)["status"].get("readyReplicas") == 2)

    eventually("the second pod serves", both_serve, timeout=240, every=0)

    # The operator looks again every 10 seconds; every write to the Deployment's spec would raise its generation.
    generation = deployment(space)["metadata"]["generation"]
    end = time.monotonic() + 35
    while time.monotonic() < end:
        load(memory)
        assert replicas(space) == 2
    assert deployment(space)["metadata"]["generation"] == generation, "somebody wrote to the Deployment"

    # A new setting makes the operator apply the whole Deployment: the number is not part of what it applies.
    kube.apply_backend(space.name, "memory", space.spec(projections={}, service=SERVICE, defaults={"queryLimit": 7}))

    def rolled() -> bool:
        load(memory)
        assert replicas(space) == 2, "the rollout changed the number of pods"
        return bool(deployment(space)["metadata"]["generation"] > generation)

    end = time.monotonic() + 120
    while not rolled():
        assert time.monotonic() < end, "the new setting was not rolled out"
    assert not {name for name in owners_of_replicas(space) if "memplane" in name}

    answers: list[int] = []

    def shrunk() -> bool:
        answers.extend(status for status, _ in memory.post(("/v1/nodes/MEMORY.GET", {"ids": ids[:1]})))
        return replicas(space) == 1 and autoscaler(space)["status"].get("currentReplicas") == 1

    eventually("without load one pod is enough", shrunk, timeout=420, every=2)
    assert set(answers) == {200}, f"reads while it shrank answered {sorted(set(answers))}"
    space.ready()
