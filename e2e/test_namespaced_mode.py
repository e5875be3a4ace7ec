"""An operator that watches one namespace: it has rights there alone, and does everything there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.cluster import ROOT, E2ECluster
from e2e.conftest import Space, values
from e2e.kube import Kube
from e2e.test_operator_away import scale
from e2e.waiting import eventually

pytestmark = pytest.mark.full
RELEASE, HOME = "own", "memplane-e2e-own"


@pytest.fixture
def alone(space: Space, cluster: E2ECluster, kube: Kube) -> Iterator[Space]:
    """The operator of the run is away; one in namespaced mode looks after the test's namespace."""
    scale(kube, 0)
    try:
        cluster.helm(
            "upgrade", "--install", RELEASE, str(ROOT / "charts" / "memplane"), "--namespace", HOME,
            "--create-namespace", "--set", f"crds.install=false,operator.watchNamespaces={{{space.name}}}",
            *values(cluster), "--wait", "--timeout", "5m",
        )  # fmt: skip
        yield space
    finally:
        cluster.helm("uninstall", RELEASE, "--namespace", HOME, "--ignore-not-found", "--wait")
        kube.core.delete_namespace(HOME)
        scale(kube, 1)


def may(cluster: E2ECluster, verb: str, what: str, namespace: str) -> bool:
    account = f"--as=system:serviceaccount:{HOME}:{RELEASE}-operator"
    return cluster.kubectl("auth", "can-i", verb, what, "-n", namespace, account, check=False).strip() == "yes"


def test_an_operator_of_one_namespace_has_rights_there_alone(alone: Space, cluster: E2ECluster) -> None:
    here = alone.name
    assert may(cluster, "create", "deployments.apps", here)
    assert may(cluster, "get", "secrets", here)
    for verb in ("list", "watch", "delete"):
        assert not may(cluster, verb, "secrets", here), f"{verb} secrets"
    for verb, what in (("get", "secrets"), ("list", "memorybackends.memplane.dev"), ("create", "deployments.apps")):
        assert not may(cluster, verb, what, "default"), f"{verb} {what} elsewhere"
    assert not may(cluster, "get", "namespaces", here)

    alone.kube.apply_backend(here, "memory", alone.spec(projections={}, deletionPolicy="Delete"))
    alone.ready()
    alone.memory().write("looked after by an operator of this namespace")
    alone.kube.delete_backend(here, "memory")
    eventually("the backend is gone", lambda: alone.kube.backend(here, "memory") is None, timeout=240)
