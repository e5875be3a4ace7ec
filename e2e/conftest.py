"""One cluster and one release for the whole run; a namespace of its own for every test.

A failed test leaves the objects and logs of its namespaces in `.memplane/e2e/<test>/`.
"""

from __future__ import annotations

import base64
import json
import re
import secrets
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kubernetes
import pytest

from e2e.calls import CLIENT, Memory, client_pod
from e2e.cluster import RELEASE, ROOT, SYSTEM, E2ECluster, ensure
from e2e.kube import Kube
from e2e.waiting import eventually

ARTIFACTS = ROOT / ".memplane" / "e2e"


def pytest_configure(config: pytest.Config) -> None:
    """The Kubernetes client leaves sockets of its exec streams to the garbage collector."""
    config.addinivalue_line("filterwarnings", "ignore::ResourceWarning")
    config.addinivalue_line("filterwarnings", "ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="session")
def cluster() -> E2ECluster:
    return ensure()


@pytest.fixture(scope="session")
def kube(cluster: E2ECluster) -> Kube:
    client = kubernetes.config.new_client_from_config(
        config_file=cluster.environment.get("KUBECONFIG"), context=cluster.context
    )
    return Kube(client)


def values(cluster: E2ECluster) -> list[str]:
    """Helm's values for the image under test and the trial databases."""
    settings = [f"image.repository={cluster.repository}", f"image.tag={cluster.tag}", "operator.resyncSeconds=10"]
    if cluster.scripted:
        settings += ["trial.milvus.image=milvusdb/milvus:v2.3.5-standalone-local", "trial.milvus.command=null"]
    return [part for setting in settings for part in ("--set", setting)]


@pytest.fixture(scope="session")
def release(cluster: E2ECluster, kube: Kube) -> str:
    """The chart, installed with trial databases; the namespace it is in."""
    chart = str(ROOT / "charts" / "memplane")
    cluster.helm(
        "upgrade", "--install", RELEASE, chart, "--namespace", SYSTEM, "--create-namespace",
        "--values", f"{chart}/values-trial.yaml", *values(cluster), "--wait", "--timeout", "8m",
    )  # fmt: skip
    if not kube.pods(SYSTEM, f"app={CLIENT}"):
        kube.core.create_namespaced_pod(SYSTEM, client_pod(f"{cluster.repository}:{cluster.tag}"))
    eventually("the client pod runs", lambda: kube.pods(SYSTEM, f"app={CLIENT}")[0]["status"]["phase"] == "Running")
    return SYSTEM


@dataclass(slots=True)
class Space:
    """A namespace for one test, and backends in it."""

    kube: Kube
    cluster: E2ECluster
    name: str
    addresses: dict[str, str]
    schema: str = field(default_factory=lambda: f"e2e_{secrets.token_hex(4)}")

    def spec(self, **changes: Any) -> dict[str, Any]:
        """A backend on the release's databases, in a schema of its own."""
        return {
            "store": {
                "connectionSecretRef": {"name": "stores", "key": "postgres"},
                "options": {"schema": self.schema},
            },
            "projections": {
                "milvus": {"connectionSecretRef": {"name": "stores", "key": "milvus"}},
                "neo4j": {"connectionSecretRef": {"name": "stores", "key": "neo4j"}},
            },
            **changes,
        }

    def ready(self, name: str = "memory", *, timeout: float = 420) -> None:
        """Wait until the backend is Ready for its newest generation."""

        def check() -> bool:
            condition = self.kube.condition(self.name, name, "Ready")
            backend = self.kube.backend(self.name, name) or {}
            assert condition.get("status") == "True", f"Ready: {condition}"
            return bool(condition["observedGeneration"] == backend["metadata"]["generation"])

        eventually(f"{name} is Ready", check, timeout=timeout)

    def memory(self, name: str = "memory", user: str = "e2e") -> Memory:
        """The service with the key that the operator made."""
        found = self.kube.core.read_namespaced_secret(f"{name}-api-key", self.name)
        key = base64.b64decode(found.data["key"]).decode()
        return Memory(self.kube, SYSTEM, self.name, name, key, user)

    def converged(self, name: str = "memory", *, timeout: float = 240) -> None:
        """Wait until the backend reports that nothing waits and nothing differs."""
        eventually(
            f"{name} has converged",
            lambda: self.kube.condition(self.name, name, "Converged").get("status") == "True",
            timeout=timeout,
        )

    def run(self, name: str, *command: str, backend: str = "memory", timeout: float = 420) -> str:
        """Run a memplane command in a pod like the service's; its standard output."""
        deployment = self.kube.deployment(self.name, backend)
        assert deployment is not None
        pod = deployment["spec"]["template"]
        pod["spec"] |= {"restartPolicy": "Never"}
        container = pod["spec"]["containers"][0]
        for probe in ("livenessProbe", "readinessProbe", "startupProbe", "lifecycle", "ports"):
            container.pop(probe, None)
        container["args"] = list(command)
        pod["metadata"] = {"name": name, "namespace": self.name, "labels": {"e2e": name}}
        self.kube.core.create_namespaced_pod(self.name, {"apiVersion": "v1", "kind": "Pod", **pod})
        phase = eventually(
            f"{' '.join(command)} ends",
            lambda: next(
                (
                    p
                    for p in [self.kube.pods(self.name, f"e2e={name}")[0]["status"]["phase"]]
                    if p in ("Succeeded", "Failed")
                ),
                "",
            ),
            timeout=timeout,
        )
        log = str(self.kube.core.read_namespaced_pod_log(name, self.name))
        assert phase == "Succeeded", log[-2000:]
        return log

    def audit(self, target: str) -> dict[str, Any]:
        """A full comparison of one target, in a pod; its report."""
        log = self.run(f"audit-{target}-{secrets.token_hex(2)}", "--json", "reconcile", target, "--full", "--audit")
        report: dict[str, Any] = json.loads(log[log.index("{") : log.rindex("}") + 1])
        return report


@pytest.fixture
def make_space(
    release: str, cluster: E2ECluster, kube: Kube, request: pytest.FixtureRequest
) -> Iterator[Callable[[], Space]]:
    """Makes namespaces that hold the databases' addresses; removed after the test, their state kept if it failed."""
    made: list[Space] = []
    trial = kube.core.read_namespaced_secret(f"{RELEASE}-trial", release).data
    addresses = {name: base64.b64decode(trial[name]).decode() for name in ("postgres", "milvus", "neo4j")}

    def make() -> Space:
        words = re.sub(r"[^a-z0-9]+", "-", request.node.name.removeprefix("test_").lower()).strip("-")[:30].strip("-")
        space = Space(kube, cluster, f"e2e-{words}-{secrets.token_hex(2)}", addresses)
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        kube.core.create_namespace({"metadata": {"name": space.name, "labels": labels}})
        kube.secret(space.name, "stores", addresses)
        made.append(space)
        return space

    yield make
    failed = getattr(request.node, "failed", False)
    for space in made:
        if failed:
            keep(space, ARTIFACTS / request.node.name)
            sys.stderr.write(state(space))
        try:
            kube.core.delete_namespace(space.name)
        except kubernetes.client.ApiException as error:
            if error.status not in (404, 409):
                raise


@pytest.fixture
def space(make_space: Callable[[], Space]) -> Space:
    return make_space()


def keep(space: Space, folder: Path) -> None:
    """Save objects, events and logs of a failed test's namespace, and the operator's log."""
    folder.mkdir(parents=True, exist_ok=True)
    run = space.cluster.kubectl
    for kind in ("memorybackends", "all", "events", "jobs"):
        (folder / f"{space.name}-{kind}.yaml").write_text(run("-n", space.name, "get", kind, "-o", "yaml", check=False))
    for pod in space.kube.pods(space.name, ""):
        name = pod["metadata"]["name"]
        (folder / f"{name}.log").write_text(run("-n", space.name, "logs", name, "--all-containers", check=False))
    selector = "app.kubernetes.io/name=memplane-operator"
    (folder / "operator.log").write_text(run("-n", SYSTEM, "logs", "-l", selector, "--tail=2000", check=False))


def state(space: Space) -> str:
    """A failed test's backends and pods in a few lines; everything else is in the files that `keep` wrote."""
    conditions = (
        "-o=jsonpath={range .items[*]}{.metadata.name}{'\\n'}{range .status.conditions[*]}"
        "  {.type}={.status} {.reason}: {.message}{'\\n'}{end}{end}"
    )
    lines = space.cluster.kubectl("-n", space.name, "get", "memorybackends", conditions, check=False).splitlines()
    lines += space.cluster.kubectl("-n", space.name, "get", "pods", check=False).splitlines()
    return "\n".join([f"\n{space.name}:", *(line[:200] for line in lines[:40]), ""])


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    outcome: Any = yield
    report = outcome.get_result()
    if report.failed:
        item.failed = True  # type: ignore[attr-defined]
    if report.when == "call":
        sys.stderr.write(f"\n{item.nodeid}: {report.outcome} after {report.duration:.0f} s\n")
