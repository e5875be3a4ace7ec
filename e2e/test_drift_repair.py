"""What somebody edits or deletes comes back; what is ours alone is left to nobody else."""

from __future__ import annotations

import kubernetes
import pytest

from e2e.conftest import SYSTEM, Space
from e2e.waiting import always, eventually

pytestmark = pytest.mark.full


def test_deleted_and_edited_children_come_back(space: Space) -> None:
    kube = space.kube
    kube.apply_backend(space.name, "memory", space.spec(projections={}))
    space.ready()
    kube.core.delete_namespaced_service("memory", space.name)
    kube.core.patch_namespaced_config_map(
        "memory-config", space.name, {"data": {"memplane.yaml": "log: {level: DEBUG}"}}
    )
    kube.apps.patch_namespaced_deployment("memory", space.name, {"spec": {"replicas": 3, "paused": True}})

    def repaired() -> bool:
        kube.core.read_namespaced_service("memory", space.name)
        text = kube.core.read_namespaced_config_map("memory-config", space.name).data["memplane.yaml"]
        deployment = kube.deployment(space.name, "memory") or {}
        return "DEBUG" not in text and deployment["spec"]["replicas"] == 1

    def asked() -> bool:
        try:
            return repaired()
        except kubernetes.client.ApiException as error:
            if error.status != 404:
                raise
            return False

    eventually("the children are as declared", asked, timeout=180)
    deployment = kube.deployment(space.name, "memory")
    assert deployment is not None
    assert deployment["spec"].get("paused") is True, "a field that is not ours is left alone"
    kube.apps.patch_namespaced_deployment("memory", space.name, {"spec": {"paused": False}})


def test_a_paused_backend_is_left_alone(space: Space) -> None:
    kube = space.kube
    kube.apply_backend(space.name, "memory", space.spec(projections={}))
    space.ready()
    kube.apply_backend(space.name, "memory", space.spec(projections={}, paused=True))
    eventually("it is paused", lambda: kube.condition(space.name, "memory", "Paused").get("status") == "True")
    kube.apps.patch_namespaced_deployment("memory", space.name, {"spec": {"replicas": 2}})

    def untouched() -> bool:
        return bool((kube.deployment(space.name, "memory") or {})["spec"]["replicas"] == 2)

    always("a paused backend is left alone", untouched, seconds=25)
    kube.apply_backend(space.name, "memory", space.spec(projections={}))
    eventually("it is looked after again", lambda: not untouched(), timeout=180)


def test_a_removed_projection_is_pruned(space: Space) -> None:
    kube = space.kube
    kube.apply_backend(space.name, "memory", space.spec())
    space.ready()
    assert kube.deployment(space.name, "memory-worker-neo4j") is not None
    spec = space.spec()
    del spec["projections"]["neo4j"]
    kube.apply_backend(space.name, "memory", spec)
    eventually("its workers are gone", lambda: kube.deployment(space.name, "memory-worker-neo4j") is None, timeout=120)
    assert kube.deployment(space.name, "memory-worker-milvus") is not None


def test_an_idle_operator_writes_nothing_but_its_lease(space: Space) -> None:
    kube = space.kube
    kube.apply_backend(space.name, "memory", space.spec(reconciler={"incrementalSchedule": ""}))
    space.ready()
    space.converged()
    versions = set()

    def seen() -> bool:
        backend = kube.backend(space.name, "memory") or {}
        deployment = kube.deployment(space.name, "memory") or {}
        versions.add((backend["metadata"]["resourceVersion"], deployment["metadata"]["generation"]))
        return True

    always("settling", lambda: True, seconds=35)
    always("watching", seen, seconds=35)
    assert len(versions) == 1, f"the backend or its Deployment was written while idle: {versions}"
    assert kube.pods(SYSTEM, "app.kubernetes.io/name=memplane-operator")
