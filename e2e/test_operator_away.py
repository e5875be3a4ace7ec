"""The operator is away, restarted, replaced; the API server restarts: nothing hangs, nothing rolls needlessly."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.cluster import NAME, E2ECluster
from e2e.conftest import SYSTEM, Space
from e2e.kube import Kube
from e2e.waiting import eventually

pytestmark = pytest.mark.full
OPERATOR = "memplane-operator"


def scale(kube: Kube, replicas: int) -> None:
    kube.apps.patch_namespaced_deployment_scale(OPERATOR, SYSTEM, {"spec": {"replicas": replicas}})
    selector = "app.kubernetes.io/name=memplane-operator"
    eventually(f"{replicas} operators run", lambda: len(kube.pods(SYSTEM, selector)) == replicas, timeout=240)


@pytest.fixture
def operator_back(kube: Kube, release: str) -> Iterator[None]:
    yield
    scale(kube, 1)


@pytest.mark.usefixtures("operator_back")
def test_what_happened_while_the_operator_was_away_is_made_good(space: Space) -> None:
    kube = space.kube
    kube.apply_backend(space.name, "memory", space.spec(projections={}))
    kube.apply_backend(space.name, "dropped", {**space.spec(projections={}, deletionPolicy="Delete")})
    space.ready()
    space.ready("dropped")
    scale(kube, 0)
    kube.apps.delete_namespaced_deployment("memory", space.name)
    kube.delete_backend(space.name, "dropped")
    eventually("the Deployment is gone", lambda: kube.deployment(space.name, "memory") is None)
    held = kube.backend(space.name, "dropped")
    assert held is not None, "the finalizer holds it until the operator is back"
    scale(kube, 1)
    eventually("the Deployment is back", lambda: kube.deployment(space.name, "memory") is not None, timeout=240)
    eventually("the deleted backend is gone", lambda: kube.backend(space.name, "dropped") is None, timeout=180)


def test_a_restarted_operator_rolls_nothing(space: Space) -> None:
    kube = space.kube
    kube.apply_backend(space.name, "memory", space.spec())
    space.ready()
    names = ("memory", "memory-worker-milvus", "memory-worker-neo4j")
    before = {name: (kube.deployment(space.name, name) or {})["metadata"]["generation"] for name in names}
    for pod in kube.pods(SYSTEM, "app.kubernetes.io/name=memplane-operator"):
        kube.kill_pod(SYSTEM, pod["metadata"]["name"])
    kube.apply_backend(space.name, "memory", space.spec(defaults={"queryLimit": 7}))
    eventually(
        "the new operator has taken over",
        lambda: (kube.backend(space.name, "memory") or {})["status"]["observedGeneration"] == 2,
        timeout=240,
    )
    space.ready()
    after = {name: (kube.deployment(space.name, name) or {})["metadata"]["generation"] for name in names}
    assert all(after[name] == before[name] + 1 for name in names), (
        f"{before} → {after}: one rollout, for the new setting"
    )


def test_the_api_server_restarts(space: Space, cluster: E2ECluster) -> None:
    if not cluster.context.startswith("kind-"):
        pytest.skip("needs a kind cluster: the test restarts its API server")
    kube = space.kube
    kube.apply_backend(space.name, "memory", space.spec(projections={}))
    space.ready()
    node = f"{NAME}-control-plane"
    cluster.run("docker", "exec", node, "sh", "-c", "pkill -9 kube-apiserver")

    def changed() -> bool:
        try:
            kube.apply_backend(space.name, "memory", space.spec(projections={}, service={"replicas": 2}))
        except Exception as error:  # noqa: BLE001 - whatever the client raises while the API server is away
            raise AssertionError(type(error).__name__) from None
        return True

    eventually("the API server takes a change", changed, timeout=180)
    eventually(
        "the operator follows",
        lambda: (kube.deployment(space.name, "memory") or {})["spec"]["replicas"] == 2,
        timeout=240,
    )
    space.ready()
