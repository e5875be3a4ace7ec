"""The API server, as far as the operator uses it: a few verbs on plain objects.

The client library's transport and credentials are used, its generated models are not: desired objects are mappings, and
server-side apply needs exactly what we own. Calls run in threads; each has a time limit.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import kubernetes
import urllib3

from memplane_operator.desired.context import Manifest
from memplane_operator.errors import ApiError, Conflict, NotFound

FIELD_MANAGER = "memplane-operator"
TIMEOUT_SECONDS = 15


@dataclass(frozen=True, slots=True)
class Resource:
    """Where objects of one kind live."""

    api: str
    kind: str
    plural: str

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        root = f"/api/{self.api}" if "/" not in self.api else f"/apis/{self.api}"
        parts = [root]
        if namespace is not None:
            parts.append(f"namespaces/{namespace}")
        parts.append(self.plural)
        if name is not None:
            parts.append(name)
        if subresource is not None:
            parts.append(subresource)
        return "/".join(parts)


CHILDREN: tuple[Resource, ...] = (
    Resource("v1", "ServiceAccount", "serviceaccounts"),
    Resource("v1", "ConfigMap", "configmaps"),
    Resource("v1", "Service", "services"),
    Resource("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies"),
    Resource("batch/v1", "Job", "jobs"),
    Resource("apps/v1", "Deployment", "deployments"),
    Resource("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers"),
    Resource("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets"),
    Resource("batch/v1", "CronJob", "cronjobs"),
)
"""Kinds of children that every cluster has. Secrets are not among them: the operator may not list them."""

KEDA: tuple[Resource, ...] = (
    Resource("keda.sh/v1alpha1", "TriggerAuthentication", "triggerauthentications"),
    Resource("keda.sh/v1alpha1", "ScaledObject", "scaledobjects"),
)
MONITORING: tuple[Resource, ...] = (Resource("monitoring.coreos.com/v1", "ServiceMonitor", "servicemonitors"),)
SECRETS = Resource("v1", "Secret", "secrets")
NAMESPACES = Resource("v1", "Namespace", "namespaces")
EVENTS = Resource("v1", "Event", "events")
LEASES = Resource("coordination.k8s.io/v1", "Lease", "leases")
BACKENDS = Resource("memplane.dev/v1alpha1", "MemoryBackend", "memorybackends")

_BY_KIND = {(r.api, r.kind): r for r in (*CHILDREN, *KEDA, *MONITORING, SECRETS, EVENTS, LEASES, BACKENDS)}


def resource_of(manifest: Manifest) -> Resource:
    """The resource that a manifest belongs to."""
    return _BY_KIND[(manifest["apiVersion"], manifest["kind"])]


Observer = Callable[[str, str], None]
"""Told of every request: its HTTP method and the plural of the kind. Called from threads."""


def plural_in(path: str) -> str:
    """The plural of the kind that a path is about; `discovery` for a path that names none."""
    parts = path.strip("/").split("/")[2 if path.startswith("/api/") else 3 :]
    if parts[:1] == ["namespaces"] and len(parts) > 2:
        parts = parts[2:]
    return parts[0] if parts else "discovery"


class Cluster:
    """Plain verbs. Every method raises `ApiError` (`NotFound`, `Conflict`) and nothing of the client library."""

    def __init__(
        self,
        client: kubernetes.client.ApiClient | None = None,
        observe: Observer | None = None,
        *,
        threads: int = 16,
        timeout: float = TIMEOUT_SECONDS,
    ) -> None:
        self._client = client or _client()
        self._observe = observe or (lambda verb, plural: None)
        self._timeout = timeout
        # Threads of its own: calls that hang here keep nobody else waiting, least of all the renewal of the Lease.
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="api")

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Manifest:
        return await self._call("GET", resource.path(namespace, name))

    async def list(self, resource: Resource, namespace: str | None, *, selector: str = "") -> list[Manifest]:
        """Objects by label selector; kind and apiVersion, which lists leave out, are filled in."""
        query = {"labelSelector": selector} if selector else {}
        items: list[Manifest] = (await self._call("GET", resource.path(namespace), query=query)).get("items", [])
        for item in items:
            item["apiVersion"], item["kind"] = resource.api, resource.kind
        return items

    async def create(self, manifest: Manifest) -> Manifest:
        resource = resource_of(manifest)
        return await self._call("POST", resource.path(manifest["metadata"].get("namespace")), body=manifest)

    async def apply(self, manifest: Manifest, *, manager: str = FIELD_MANAGER) -> Manifest:
        """Server-side apply: we own exactly the fields that the manifest names."""
        path = resource_of(manifest).path(manifest["metadata"].get("namespace"), manifest["metadata"]["name"])
        query = {"fieldManager": manager, "force": "true"}
        return await self._call("PATCH", path, query=query, body=manifest, content="application/apply-patch+yaml")

    async def patch(
        self, resource: Resource, namespace: str | None, name: str, patch: Any, *, subresource: str | None = None
    ) -> Manifest:
        """A JSON merge patch."""
        path = resource.path(namespace, name, subresource)
        query = {"fieldManager": FIELD_MANAGER}
        return await self._call("PATCH", path, query=query, body=patch, content="application/merge-patch+json")

    async def replace(self, resource: Resource, manifest: Manifest) -> Manifest:
        """A PUT with the manifest's resourceVersion."""
        metadata = manifest["metadata"]
        return await self._call("PUT", resource.path(metadata.get("namespace"), metadata["name"]), body=manifest)

    async def delete(self, resource: Resource, namespace: str | None, name: str) -> None:
        """Delete in the background; an absent object is fine."""
        try:
            await self._call("DELETE", resource.path(namespace, name), body={"propagationPolicy": "Background"})
        except NotFound:
            return

    async def serves(self, resource: Resource) -> bool:
        """Whether the cluster has this kind (KEDA, the Prometheus operator)."""
        try:
            found = await self._call("GET", f"/apis/{resource.api}")
        except NotFound:
            return False
        return any(item.get("name") == resource.plural for item in found.get("resources", []))

    async def _call(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: Any = None, content: str = ""
    ) -> Manifest:
        request = partial(self._request, method, path, query or {}, body, content)
        return await asyncio.get_running_loop().run_in_executor(self._threads, request)

    def _request(self, method: str, path: str, query: Mapping[str, str], body: Any, content: str) -> Manifest:
        headers = {"Accept": "application/json", "Content-Type": content or "application/json"}
        parameters = self._client.param_serialize(
            method,
            path,
            query_params=list(query.items()),
            header_params=headers,
            body=body,
            auth_settings=["BearerToken"],
        )
        what = f"{method} {path}"
        self._observe(method, plural_in(path))
        try:
            response = self._client.call_api(*parameters, _request_timeout=self._timeout)
            data: bytes = response.read()  # type: ignore[no-untyped-call]
        except kubernetes.client.ApiException as error:
            raise _api_error(error, what) from None
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiError(0, what, type(error).__name__) from None
        if not 200 <= response.status < 300:
            raise _error(response.status, what, data)
        result: Manifest = json.loads(data) if data else {}
        return result


def _client() -> kubernetes.client.ApiClient:
    """A client that does not try again by itself: what failed is tried again by who knows whether it still matters."""
    configuration = kubernetes.client.Configuration.get_default_copy()
    configuration.retries = 0
    return kubernetes.client.ApiClient(configuration)


def _api_error(error: kubernetes.client.ApiException, what: str) -> ApiError:
    return _error(error.status or 0, what, error.body or b"")


def _error(status: int, what: str, body: bytes | str) -> ApiError:
    try:
        message = str(json.loads(body).get("message", ""))[:500]
    except (ValueError, AttributeError):
        message = ""
    kind = {404: NotFound, 409: Conflict}.get(status, ApiError)
    return kind(status, what, message)
