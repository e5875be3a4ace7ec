"""The loop around a backend, against an API server of the test's own that keeps objects and can refuse."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from memplane_operator.cluster import BACKENDS, Cluster, Resource
from memplane_operator.controller import PROGRESS_LOOKS, Controller
from memplane_operator.deletion import FINALIZER
from memplane_operator.errors import ApiError, NotFound
from memplane_operator.metrics import OperatorMetrics
from memplane_operator.settings import OperatorSettings
from tests.operator.objects import BOTH, MINIMAL

KEY = ("agents", "memory")


class Server(Cluster):
    """Objects by path; applies record what they own, as the real server's managed fields do."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.refuse: dict[str, ApiError] = {}
        self.written: list[str] = []
        self.served = {"scaledobjects"}

    def put(self, path: str, item: dict[str, Any]) -> dict[str, Any]:
        metadata = item["metadata"]
        metadata.setdefault("uid", path)
        metadata["resourceVersion"] = str(len(self.written) + 1)
        metadata.setdefault("generation", 1)
        self.objects[path] = item
        self.written.append(path)
        return copy.deepcopy(item)

    async def _call(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: Any = None, content: str = ""
    ) -> dict[str, Any]:
        if (error := self.refuse.get(f"{method} {path}")) is not None:
            raise error
        body = json.loads(json.dumps(body)) if body is not None else None
        if path.startswith("/apis/keda.sh/v1alpha1") and path.count("/") == 3:
            return {"resources": [{"name": name} for name in self.served]}
        if path.startswith("/apis/monitoring") and path.count("/") == 3:
            raise NotFound(404, path)
        if method == "GET" and path in self.objects:
            return copy.deepcopy(self.objects[path])
        if method == "GET" and path.rsplit("/", 1)[-1] not in PLURALS:
            raise NotFound(404, path)
        if method == "GET":
            return self._list(path, (query or {}).get("labelSelector", ""))
        if method == "POST":
            name = body["metadata"].get("name") or f"event-{len(self.written)}"
            if "stringData" in body:
                import base64

                body["data"] = {k: base64.b64encode(v.encode()).decode() for k, v in body.pop("stringData").items()}
            return self.put(f"{path}/{name}", body)
        if method == "DELETE":
            if path not in self.objects:
                raise NotFound(404, path)
            del self.objects[path]
            self.written.append(f"-{path}")
            return {}
        return self._patch(path, content, query or {}, body)

    def _list(self, path: str, selector: str) -> dict[str, Any]:
        name, _, value = selector.partition("=")
        items = [
            copy.deepcopy(item)
            for where, item in self.objects.items()
            if where.startswith(f"{path}/") and (not name or item["metadata"].get("labels", {}).get(name) == value)
        ]
        return {"items": items}

    def _patch(self, path: str, content: str, query: Mapping[str, str], body: Any) -> dict[str, Any]:
        if content.startswith("application/apply"):
            old = self.objects.get(path, {})
            item = copy.deepcopy(body)
            fields = {"manager": query["fieldManager"], "operation": "Apply", "fieldsV1": tree(body)}
            item["metadata"]["managedFields"] = [fields]
            item |= {"status": old["status"]} if "status" in old else {}
            return self.put(path, item)
        base = path.removesuffix("/status")
        if base not in self.objects:
            raise NotFound(404, path)
        item = copy.deepcopy(self.objects[base])
        for part, value in body.items():
            value.pop("resourceVersion", None)
            item[part] = {**item.get(part, {}), **value}
        return self.put(base, item)


PLURALS = {r.plural for r in __import__("memplane_operator.cluster").cluster._BY_KIND.values()}


def tree(node: Any, *, top: bool = True) -> dict[str, Any]:
    """A managed-fields tree for a manifest: every list is owned as a whole."""
    if not isinstance(node, dict):
        return {}
    skip = {"apiVersion", "kind"} if top else set()
    result = {f"f:{name}": tree(value, top=False) for name, value in node.items() if name not in skip}
    if top:
        for name in ("f:name", "f:namespace", "f:resourceVersion"):
            result.get("f:metadata", {}).pop(name, None)
    return result


@pytest.fixture
def server() -> Server:
    server = Server()
    for name, key in (("pg", "dsn"), ("milvus", "uri"), ("neo4j", "uri")):
        server.objects[f"/api/v1/namespaces/agents/secrets/{name}"] = {"metadata": {}, "data": {key: "dmFsdWU="}}
    server.objects["/api/v1/namespaces/agents"] = {"metadata": {}}
    return server


@pytest.fixture
async def controller(server: Server) -> Any:
    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"schemaVersion": 4, "store": {"ok": True}, "targets": {}})

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        made = Controller(server, OperatorSettings(image="memplane:1"), OperatorMetrics(), http, b"key")
        await made.discover()
        yield made


def declare(server: Server, spec: dict[str, Any], **metadata: Any) -> str:
    path = BACKENDS.path(*KEY)
    old = server.objects.get(path, {})
    item = {
        "metadata": {
            "name": "memory",
            "namespace": "agents",
            "uid": "u",
            "generation": 1,
            "resourceVersion": "1",
            **metadata,
        },
        "spec": spec,
    }
    server.objects[path] = item | ({"status": old["status"]} if "status" in old else {})
    return path


def finish(server: Server, state: str = "Complete") -> None:
    for path, item in server.objects.items():
        if "/jobs/" in path:
            item["status"] = {"conditions": [{"type": state, "status": "True"}]}


def roll_out(server: Server) -> None:
    for path, item in server.objects.items():
        if "/deployments/" in path:
            wanted = item["spec"].get("replicas", 1)
            item["status"] = {"observedGeneration": 9, "readyReplicas": wanted, "updatedReplicas": wanted}


def kinds(server: Server) -> set[str]:
    return {path.split("/")[-2] for path in server.objects if "/namespaces/agents/" in path} - {"secrets", "events"}


def conditions(server: Server) -> dict[str, tuple[str, str]]:
    listed = server.objects[BACKENDS.path(*KEY)]["status"]["conditions"]
    return {c["type"]: (c["status"], c["reason"]) for c in listed}


async def test_the_rollout_waits_for_the_migration_and_then_becomes_ready(
    server: Server, controller: Controller
) -> None:
    declare(server, BOTH)
    assert await controller.look(KEY) is not None
    assert "deployments" not in kinds(server), "nothing runs before the schema fits"
    assert conditions(server)["Ready"] == ("False", "Migrating")
    finish(server)
    await controller.look(KEY)
    assert {"deployments", "cronjobs", "services", "configmaps", "serviceaccounts"} <= kinds(server)
    roll_out(server)
    await controller.look(KEY)
    assert conditions(server)["Ready"] == ("True", "Serving")


async def test_a_second_look_writes_nothing(server: Server, controller: Controller) -> None:
    declare(server, BOTH)
    await controller.look(KEY)
    finish(server)
    await controller.look(KEY)
    roll_out(server)
    await controller.look(KEY)
    before = list(server.written)
    assert await controller.look(KEY) is None
    assert server.written == before


async def test_a_backend_that_does_not_become_ready_is_not_polled_forever(
    server: Server, controller: Controller
) -> None:
    declare(server, BOTH)
    soon = [await controller.look(KEY) for _ in range(PROGRESS_LOOKS + 2)]
    assert all(again is not None for again in soon[: PROGRESS_LOOKS + 1])
    assert soon[-1] is None, "the regular resync looks after it"
    declare(server, BOTH, generation=2)
    assert await controller.look(KEY) is not None, "a new spec is followed closely again"


async def test_a_backend_without_replicas_is_at_rest(server: Server, controller: Controller) -> None:
    declare(server, {**MINIMAL, "service": {"replicas": 0}})
    await controller.look(KEY)
    finish(server)
    assert await controller.look(KEY) is not None, "something was applied"
    controller.http = httpx.AsyncClient(transport=httpx.MockTransport(lambda _: pytest.fail("nobody answers there")))
    assert await controller.look(KEY) is None
    assert conditions(server)["Ready"] == ("False", "ScaledToZero")


async def test_a_failed_migration_leaves_the_running_release_alone(server: Server, controller: Controller) -> None:
    declare(server, BOTH)
    await controller.look(KEY)
    finish(server)
    await controller.look(KEY)
    path = "/apis/apps/v1/namespaces/agents/deployments/memory"
    before = copy.deepcopy(server.objects[path])
    declare(server, {**BOTH, "image": {"repository": "memplane", "tag": "2"}}, generation=2)
    await controller.look(KEY)
    newest = max((p for p in server.objects if "/jobs/" in p), key=lambda p: server.written.index(p))
    server.objects[newest]["status"] = {"conditions": [{"type": "Failed", "status": "True"}]}
    await controller.look(KEY)
    assert conditions(server)["Migrated"] == ("False", "MigrationFailed")
    assert server.objects[path] == before


async def test_a_missing_secret_is_named_and_waited_for(server: Server, controller: Controller) -> None:
    declare(server, BOTH)
    missing = server.objects.pop("/api/v1/namespaces/agents/secrets/milvus")
    await controller.look(KEY)
    assert conditions(server)["Ready"] == ("False", "SecretMissing")
    assert kinds(server) == {"memorybackends"}
    server.objects["/api/v1/namespaces/agents/secrets/milvus"] = missing
    await controller.look(KEY)
    assert conditions(server)["Ready"] == ("False", "Migrating")


async def test_own_secrets_are_made_once_and_never_overwritten(server: Server, controller: Controller) -> None:
    declare(server, MINIMAL)
    await controller.look(KEY)
    path = "/api/v1/namespaces/agents/secrets/memory-api-key"
    first = copy.deepcopy(server.objects[path]["data"])
    await controller.look(KEY)
    assert server.objects[path]["data"] == first


async def test_a_removed_projection_is_pruned_with_its_autoscaler(server: Server, controller: Controller) -> None:
    scaled = copy.deepcopy(BOTH)
    scaled["projections"]["neo4j"]["worker"] = {"autoscaling": {"maxReplicas": 3}}
    declare(server, scaled)
    await controller.look(KEY)
    finish(server)
    await controller.look(KEY)
    assert "scaledobjects" in kinds(server)
    only_milvus = {**BOTH, "projections": {"milvus": BOTH["projections"]["milvus"]}}
    declare(server, only_milvus, generation=2)
    await controller.look(KEY)
    assert "scaledobjects" not in kinds(server)
    assert not any("neo4j" in path for path in server.objects if "/secrets/" not in path)


async def test_an_autoscaler_takes_over_the_live_number_of_replicas(server: Server, controller: Controller) -> None:
    fixed = copy.deepcopy(BOTH)
    fixed["projections"]["milvus"]["worker"] = {"replicas": 3}
    declare(server, fixed)
    await controller.look(KEY)
    finish(server)
    await controller.look(KEY)
    applied: list[tuple[str, Any]] = []
    apply = server.apply

    async def recorded(manifest: dict[str, Any], *, manager: str = "memplane-operator") -> dict[str, Any]:
        if manifest["metadata"]["name"] == "memory-worker-milvus":
            applied.append((manager, manifest["spec"].get("replicas")))
        return await apply(manifest, manager=manager)

    server.apply = recorded  # type: ignore[method-assign]
    scaled = copy.deepcopy(BOTH)
    scaled["projections"]["milvus"]["worker"] = {"autoscaling": {"maxReplicas": 5}}
    declare(server, scaled, generation=2)
    await controller.look(KEY)
    assert applied[0] == ("memplane-operator-handover", 3)
    assert ("memplane-operator", None) in applied[1:]


async def test_objects_of_others_with_our_label_are_not_touched(server: Server, controller: Controller) -> None:
    declare(server, MINIMAL)
    path = "/apis/apps/v1/namespaces/agents/deployments/theirs"
    server.objects[path] = {"metadata": {"name": "theirs", "labels": {"memplane.dev/backend": "memory"}}}
    await controller.look(KEY)
    finish(server)
    await controller.look(KEY)
    assert path in server.objects


async def test_deletion_with_policy_delete_drops_first(server: Server, controller: Controller) -> None:
    spec = {**BOTH, "deletionPolicy": "Delete"}
    path = declare(server, spec)
    await controller.look(KEY)
    assert server.objects[path]["metadata"]["finalizers"] == [FINALIZER]
    finish(server)
    await controller.look(KEY)
    declare(server, spec, deletionTimestamp="now", finalizers=["theirs", FINALIZER])
    assert await controller.look(KEY) is not None
    assert "/apis/batch/v1/namespaces/agents/jobs/memory-drop" in server.objects
    assert "deployments" not in kinds(server), "nothing may write while it is dropped"
    finish(server)
    await controller.look(KEY)
    assert server.objects[path]["metadata"]["finalizers"] == ["theirs"]


@pytest.mark.parametrize("trouble", ["namespace", "secret", "failed", "refused"])
def test_the_finalizer_always_goes(trouble: str, server: Server) -> None:
    import asyncio

    async def run() -> None:
        async with httpx.AsyncClient() as http:
            controller = Controller(server, OperatorSettings(image="memplane:1"), OperatorMetrics(), http, b"key")
            spec = {**MINIMAL, "deletionPolicy": "Delete"}
            path = declare(server, spec, deletionTimestamp="now", finalizers=[FINALIZER])
            if trouble == "namespace":
                server.objects["/api/v1/namespaces/agents"]["metadata"]["deletionTimestamp"] = "now"
            if trouble == "secret":
                del server.objects["/api/v1/namespaces/agents/secrets/pg"]
            if trouble == "refused":
                where = "PATCH /apis/batch/v1/namespaces/agents/jobs/memory-drop"
                server.refuse[where] = ApiError(403, "PATCH", "because it is being terminated")
            await controller.look(KEY)
            if trouble == "failed":
                finish(server, "Failed")
                await controller.look(KEY)
            assert server.objects[path]["metadata"]["finalizers"] == []
            events = [item for where, item in server.objects.items() if "/events/" in where]
            assert [event["reason"] for event in events] == ["DataLeftBehind"]

    asyncio.run(run())


async def test_a_paused_backend_is_left_alone_and_keeps_its_numbers(server: Server, controller: Controller) -> None:
    declare(server, MINIMAL)
    await controller.look(KEY)
    finish(server)
    await controller.look(KEY)
    roll_out(server)
    await controller.look(KEY)
    before = {path: item for path, item in copy.deepcopy(server.objects).items() if "memorybackends" not in path}
    declare(server, {**MINIMAL, "paused": True, "service": {"replicas": 5}}, generation=2)
    await controller.look(KEY)
    after = {p: i for p, i in server.objects.items() if "memorybackends" not in p and "/events/" not in p}
    assert after == {p: i for p, i in before.items() if "/events/" not in p}
    assert conditions(server)["Paused"] == ("True", "Paused")
    assert server.objects[BACKENDS.path(*KEY)]["status"]["schemaVersion"] == "4"


async def test_a_spec_that_the_models_refuse_becomes_a_condition(server: Server, controller: Controller) -> None:
    declare(server, {**MINIMAL, "defaults": {"queryLimit": 0}})
    await controller.look(KEY)
    assert conditions(server)["Reconciled"] == ("False", "InvalidSpec")


async def test_fields_of_a_newer_resource_definition_are_left_out(server: Server, controller: Controller) -> None:
    declare(server, {**MINIMAL, "added": {"later": 1}, "defaults": {"addedToo": True}})
    await controller.look(KEY)
    assert conditions(server)["Ready"] == ("False", "Migrating")


async def test_a_resource_knows_its_paths() -> None:
    assert Resource("v1", "Secret", "secrets").path("n", "s") == "/api/v1/namespaces/n/secrets/s"
    assert Resource("apps/v1", "Deployment", "deployments").path("n") == "/apis/apps/v1/namespaces/n/deployments"
