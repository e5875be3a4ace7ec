"""A hundred backends with zero replicas, created at once: until all are Reconciled, and then at rest.

Needs a cluster, as `make e2e` does. Beside it stands `kubectl apply --server-side` of the very same children. The
backends' store needs no migration, so that no pod runs: what is measured is the operator and the API server alone.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import kubernetes
import yaml
from e2e.cluster import RELEASE, ROOT, SYSTEM, E2ECluster, ensure
from e2e.kube import GROUP, PLURAL, VERSION, Kube
from e2e.waiting import eventually
from prometheus_client.parser import text_string_to_metric_families

from bench.frame import Bench, Result, verify
from memplane_operator.api.spec import MemoryBackendSpec
from memplane_operator.desired.build import build
from memplane_operator.desired.context import Backend, Facts

NAME = "operator"
TITLE = "100 backends with zero replicas"
SPEC: dict[str, Any] = {
    "store": {"plugin": "mysql", "connectionSecretRef": {"name": "stores", "key": "dsn"}},
    "service": {"replicas": 0, "podDisruptionBudget": {}},
    "networkPolicy": {"enabled": True},
}


@dataclass(frozen=True, slots=True)
class Seen:
    """The operator's own metrics at one moment: resident memory in bytes, requests by (method, kind)."""

    memory: float
    requests: dict[tuple[str, str], float]

    def since(self, earlier: Seen, *, writes: bool = False) -> int:
        """Requests since then, or only those that write, without the Lease's."""
        return int(
            sum(
                count - earlier.requests.get(key, 0)
                for key, count in self.requests.items()
                if key[1] != "leases" and (key[0] != "GET" or not writes)
            )
        )


class Operator:
    """The release's operator, read through the API server's proxy."""

    def __init__(self, kube: Kube) -> None:
        self.kube = kube

    def seen(self) -> Seen:
        text = self.kube.core.connect_get_namespaced_service_proxy_with_path(
            f"{RELEASE}-operator:8080", SYSTEM, "metrics"
        )
        memory, requests = 0.0, {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == "process_resident_memory_bytes":
                    memory = sample.value
                elif sample.name == "memplane_operator_api_requests_total":
                    requests[sample.labels["method"], sample.labels["kind"]] = sample.value
        return Seen(memory, requests)


async def run(bench: Bench) -> list[Result]:
    """Install the operator, then measure in threads: everything here talks to the API server."""
    return await asyncio.to_thread(_run, bench)


def _run(bench: Bench) -> list[Result]:
    count, rest = bench.size(100, 10), bench.size(130, 20)
    cluster = ensure()
    client = kubernetes.config.new_client_from_config(
        config_file=cluster.environment.get("KUBECONFIG"), context=cluster.context
    )
    kube = Kube(client)
    install(cluster, kube)
    operator = Operator(kube)
    with namespace(kube) as first, namespace(kube) as second:
        kube.secret(first, "stores", {"dsn": "mysql://nobody:nothing@nowhere:3306/none"})
        before = operator.seen()
        seconds, peak = declare(kube, operator, first, count)
        after = operator.seen()
        verify_children(kube, first, count)
        applied, objects = apply_children(cluster, second, count)
        writes, reads, peak = idle(operator, rest, peak)
    written = after.since(before, writes=True)
    bench.say(f"{after.since(before) / count:.0f} requests a backend, {written / count:.0f} of them writes")
    bench.say(f"at rest: {reads / count * 60 / rest:.0f} reads a backend and minute")
    return [
        Result(f"{count} backends until Reconciled", seconds, "s", False, applied, "kubectl apply"),
        Result("writes a backend", written / count, "requests", False, objects / count, "objects applied"),
        Result("operator's most memory", peak / 2**20, "MiB", False, bound=256),
        Result(f"writes at rest in {rest} s, Lease aside", writes, "requests", False, bound=0),
    ]  # fmt: skip


def install(cluster: E2ECluster, kube: Kube) -> None:
    """The chart with the image of this tree, at its default pace."""
    cluster.helm(
        "upgrade", "--install", RELEASE, str(ROOT / "charts" / "memplane"), "--namespace", SYSTEM, "--create-namespace",
        "--reuse-values", "--set", f"image.repository={cluster.repository},image.tag={cluster.tag}",
        "--set", "operator.resyncSeconds=60", "--wait", "--timeout", "8m",
    )  # fmt: skip
    selector = "app.kubernetes.io/name=memplane-operator"
    eventually("one operator runs", lambda: len(kube.pods(SYSTEM, selector)) == 1)


@contextmanager
def namespace(kube: Kube) -> Iterator[str]:
    name = f"bench-{uuid4().hex[:8]}"
    kube.core.create_namespace({"metadata": {"name": name}})
    try:
        yield name
    finally:
        kube.core.delete_namespace(name)


def declare(kube: Kube, operator: Operator, space: str, count: int) -> tuple[float, float]:
    """Create all backends at once; seconds until every one is Reconciled, and the operator's most memory."""
    bodies = [
        {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": "MemoryBackend",
            "metadata": {"name": f"memory-{number:03}", "namespace": space},
            "spec": SPEC,
        }
        for number in range(count)
    ]
    started = time.perf_counter()
    with ThreadPoolExecutor(8) as pool:
        list(
            pool.map(
                lambda body: kube.custom.create_namespaced_custom_object(GROUP, VERSION, space, PLURAL, body), bodies
            )
        )
    peak = 0.0

    def reconciled() -> bool:
        nonlocal peak
        peak = max(peak, operator.seen().memory)
        items = kube.custom.list_namespaced_custom_object(GROUP, VERSION, space, PLURAL)["items"]
        return sum(map(_is_reconciled, items)) == count

    eventually(f"{count} backends are Reconciled", reconciled, timeout=600, every=0.5)
    return time.perf_counter() - started, peak


def _is_reconciled(item: dict[str, Any]) -> bool:
    conditions = (item.get("status") or {}).get("conditions", [])
    return any(c["type"] == "Reconciled" and c["status"] == "True" for c in conditions)


def children(space: str, count: int) -> list[dict[str, Any]]:
    """The objects that the operator makes for the backends, without owners."""
    spec = MemoryBackendSpec.model_validate(SPEC)
    objects: list[dict[str, Any]] = []
    for number in range(count):
        backend = Backend(f"memory-{number:03}", space, "none", 1, spec)
        desired = build(backend, Facts("memplane:bench"))
        objects += [*desired.foundation, *desired.rollout]
        objects += [
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": f"{backend.name}-{name}", "namespace": space},
                "stringData": {"key": "x" * 43},
            }
            for name in ("status-key", "api-key")
        ]
    for item in objects:
        item["metadata"].pop("ownerReferences", None)
    return objects


def verify_children(kube: Kube, space: str, count: int) -> None:
    """The operator has made what `children` says, no more and no fewer."""
    wanted = children(space, count)
    for kind, found in (
        ("Deployment", kube.apps.list_namespaced_deployment(space).items),
        ("Service", kube.core.list_namespaced_service(space).items),
        ("Secret", [s for s in kube.core.list_namespaced_secret(space).items if s.metadata.name != "stores"]),
    ):
        verify(
            {item.metadata.name for item in found} == {i["metadata"]["name"] for i in wanted if i["kind"] == kind},
            f"the {kind}s are not the declared ones",
        )


def apply_children(cluster: E2ECluster, space: str, count: int) -> tuple[float, int]:
    """`kubectl apply --server-side` of the same objects: seconds, and how many there are."""
    objects = children(space, count)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "children.yaml"
        path.write_text(yaml.safe_dump_all(objects), encoding="utf-8")
        started = time.perf_counter()
        cluster.kubectl("apply", "--server-side", "--filename", str(path))
        return time.perf_counter() - started, len(objects)


def idle(operator: Operator, seconds: int, peak: float) -> tuple[int, int, float]:
    """Writes and reads while nothing is declared or changed, after half a minute to settle; and the most memory."""
    time.sleep(30)
    first = operator.seen()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(5)
        peak = max(peak, operator.seen().memory)
    last = operator.seen()
    return last.since(first, writes=True), last.since(first) - last.since(first, writes=True), peak
