"""Upgrade and rollback of image and chart, from the chart of an earlier commit, without an interruption of service."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from e2e.cluster import ROOT, E2ECluster
from e2e.conftest import RELEASE, SYSTEM, Space, values
from e2e.waiting import eventually

pytestmark = pytest.mark.full


def earlier_chart(cluster: E2ECluster, folder: Path) -> str:
    """The chart of the commit before the newest change of the chart, packaged."""
    revisions = cluster.run("git", "log", "--format=%H", "-2", "--", "charts/memplane").split()
    revision = os.environ.get("MEMPLANE_E2E_EARLIER", revisions[-1])
    archive = folder / "earlier.tar"
    cluster.run("git", "archive", "--output", str(archive), revision, "charts/memplane")
    cluster.run("tar", "-xf", str(archive), "-C", str(folder))
    cluster.helm("package", str(folder / "charts" / "memplane"), "--destination", str(folder))
    return str(next(folder.glob("*.tgz")))


def test_the_chart_is_upgraded_and_rolled_back(space: Space, cluster: E2ECluster, tmp_path: Path) -> None:
    space.kube.apply_backend(space.name, "memory", space.spec(projections={}))
    space.ready()
    (kept,) = space.memory().write("kept over the upgrade")
    trial = f"{ROOT / 'charts' / 'memplane'}/values-trial.yaml"
    arguments = ["--namespace", SYSTEM, "--values", trial, *values(cluster), "--wait", "--timeout", "5m"]
    cluster.helm("upgrade", RELEASE, earlier_chart(cluster, tmp_path), *arguments)
    cluster.helm("upgrade", RELEASE, str(ROOT / "charts" / "memplane"), *arguments)
    space.ready()
    cluster.helm("rollback", RELEASE, "--namespace", SYSTEM, "--wait", "--timeout", "5m")
    space.ready()
    assert space.memory().node("MEMORY.GET", {"ids": [kept]})
    cluster.helm("upgrade", RELEASE, str(ROOT / "charts" / "memplane"), *arguments)


def test_another_image_rolls_out_without_an_interruption(space: Space, cluster: E2ECluster) -> None:
    if not cluster.context.startswith("kind-"):
        pytest.skip("needs a kind cluster: the test loads a second tag of the image")
    tag = f"{cluster.tag}-next"
    cluster.run("docker", "tag", f"{cluster.repository}:{cluster.tag}", f"{cluster.repository}:{tag}")
    cluster.run(
        "kind", "load", "docker-image", f"{cluster.repository}:{tag}", "--name", cluster.context.removeprefix("kind-")
    )
    kube = space.kube
    kube.apply_backend(space.name, "memory", space.spec(projections={}))
    space.ready()
    memory = space.memory()
    (kept,) = memory.write("served during the rollout")
    image = {"repository": cluster.repository, "tag": tag}
    kube.apply_backend(space.name, "memory", space.spec(projections={}, image=image))

    def rolled_out() -> bool:
        assert memory.node("MEMORY.GET", {"ids": [kept]}), "the service is interrupted"
        deployment = kube.deployment(space.name, "memory") or {}
        used = deployment["spec"]["template"]["spec"]["containers"][0]["image"]
        status = deployment.get("status", {})
        return used.endswith(tag) and status.get("updatedReplicas") == status.get("replicas") == 1

    eventually("the new image runs", rolled_out, timeout=240)


def test_a_failing_migration_stops_the_rollout_and_the_old_release_serves_on(space: Space) -> None:
    kube = space.kube
    kube.apply_backend(space.name, "memory", space.spec(projections={}))
    space.ready()
    memory = space.memory()
    (kept,) = memory.write("served by the old release")
    broken = {"repository": "memplane", "tag": "does-not-exist", "pullPolicy": "Never"}
    kube.apply_backend(space.name, "memory", space.spec(projections={}, image=broken))
    eventually(
        "the rollout is held back",
        lambda: kube.condition(space.name, "memory", "Reconciled").get("reason") in ("Migrating", "MigrationFailed"),
        timeout=180,
    )
    deployment = kube.deployment(space.name, "memory") or {}
    assert not deployment["spec"]["template"]["spec"]["containers"][0]["image"].endswith("does-not-exist")
    assert memory.node("MEMORY.GET", {"ids": [kept]})
    kube.apply_backend(space.name, "memory", space.spec(projections={}))
    space.ready()
