"""The Kubernetes API for tests: plain objects, by kind."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import kubernetes
from kubernetes.stream import stream

GROUP, VERSION, PLURAL = "memplane.dev", "v1alpha1", "memorybackends"
JSON = dict[str, Any]


class Kube:
    """A few verbs, each answering plain mappings."""

    def __init__(self, client: kubernetes.client.ApiClient) -> None:
        self.client = client
        self.core = kubernetes.client.CoreV1Api(client)
        self.apps = kubernetes.client.AppsV1Api(client)
        self.batch = kubernetes.client.BatchV1Api(client)
        self.autoscaling = kubernetes.client.AutoscalingV2Api(client)
        self.custom = kubernetes.client.CustomObjectsApi(client)

    def plain(self, item: Any) -> JSON:
        result: JSON = self.client.sanitize_for_serialization(item)
        return result

    # backends

    def apply_backend(self, namespace: str, name: str, spec: Mapping[str, Any]) -> JSON:
        """Create the backend, or give it this spec."""
        body = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": "MemoryBackend",
            "metadata": {"name": name, "namespace": namespace},
            "spec": dict(spec),
        }
        try:
            current: JSON = self.custom.get_namespaced_custom_object(GROUP, VERSION, namespace, PLURAL, name)
        except kubernetes.client.ApiException as error:
            if error.status != 404:
                raise
            made: JSON = self.custom.create_namespaced_custom_object(GROUP, VERSION, namespace, PLURAL, body)
            return made
        body["metadata"]["resourceVersion"] = current["metadata"]["resourceVersion"]
        changed: JSON = self.custom.replace_namespaced_custom_object(GROUP, VERSION, namespace, PLURAL, name, body)
        return changed

    def backend(self, namespace: str, name: str) -> JSON | None:
        try:
            found: JSON = self.custom.get_namespaced_custom_object(GROUP, VERSION, namespace, PLURAL, name)
        except kubernetes.client.ApiException as error:
            if error.status == 404:
                return None
            raise
        return found

    def delete_backend(self, namespace: str, name: str) -> None:
        self.custom.delete_namespaced_custom_object(GROUP, VERSION, namespace, PLURAL, name)

    def condition(self, namespace: str, name: str, kind: str) -> JSON:
        """The condition of that type; empty while there is none."""
        status = (self.backend(namespace, name) or {}).get("status") or {}
        return next((c for c in status.get("conditions", []) if c["type"] == kind), {})

    # other objects

    def deployment(self, namespace: str, name: str) -> JSON | None:
        try:
            return self.plain(self.apps.read_namespaced_deployment(name, namespace))
        except kubernetes.client.ApiException as error:
            if error.status == 404:
                return None
            raise

    def pods(self, namespace: str, selector: str) -> list[JSON]:
        return [self.plain(pod) for pod in self.core.list_namespaced_pod(namespace, label_selector=selector).items]

    def kill_pod(self, namespace: str, name: str) -> None:
        """Delete without grace: the kubelet kills its processes at once."""
        self.core.delete_namespaced_pod(name, namespace, grace_period_seconds=0)

    def secret(self, namespace: str, name: str, data: Mapping[str, str]) -> None:
        """Create the Secret, or replace its data."""
        body = {"metadata": {"name": name, "namespace": namespace}, "stringData": dict(data)}
        try:
            self.core.create_namespaced_secret(namespace, body)
        except kubernetes.client.ApiException as error:
            if error.status != 409:
                raise
            self.core.patch_namespaced_secret(name, namespace, body)

    def exec(self, namespace: str, pod: str, command: list[str]) -> str:
        """Run a command in a pod; its standard output. Raises `AssertionError` when it fails."""
        call = stream(
            self.core.connect_get_namespaced_pod_exec,
            pod,
            namespace,
            command=command,
            stderr=True,
            stdin=False,
            stdout=True,
            tty=False,
            _preload_content=False,
        )
        call.run_forever(timeout=120)
        out, err = call.read_stdout(), call.read_stderr()
        outcome = json.loads(call.read_channel(3) or '{"status": "Unknown"}')
        call.close()
        assert outcome.get("status") == "Success", f"{command}: {(out + err)[-1500:]}"
        return str(out)
