"""The pod that every process of a backend runs in: restricted, read-only, with Secrets as files.

The inputs annotation digests the settings and the Secrets' checksums: a change of either rolls the pods, an operator
restart or upgrade does not.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

from memplane_operator.api.spec import Resources
from memplane_operator.desired.config import CONFIG_PATH, SECRET_PATH, config_map, config_name, secret_files
from memplane_operator.desired.context import Backend, Facts, Manifest
from memplane_operator.desired.labels import CHECKSUM_ANNOTATION, labels

USER_ID = 10001


def digest(*parts: object) -> str:
    """A short digest of JSON values."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def inputs_digest(backend: Backend, facts: Facts) -> str:
    """Digest of all that a running process has read at start: the settings document and its Secrets."""
    used = {f"{ref.name}/{ref.key}" for ref in secret_files(backend).values()}
    return digest(config_map(backend)["data"], {key: facts.checksums.get(key, "") for key in sorted(used)})


def pod_template(
    backend: Backend,
    facts: Facts,
    component: str,
    args: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    resources: Resources | None = None,
    port: int | None = None,
    probes: Manifest | None = None,
    grace_seconds: int = 30,
    restart: str = "Always",
) -> Manifest:
    """Template of a pod that runs `memplane ARGS`."""
    container = _container(backend, facts, args, env or {})
    container |= probes or {}
    if port is not None:
        container["ports"] = [{"name": "http", "containerPort": port, "protocol": "TCP"}]
    if resources is not None:
        container["resources"] = resources.model_dump(by_alias=True, exclude_none=True)
    return {
        "metadata": {
            "labels": labels(backend, component),
            "annotations": {CHECKSUM_ANNOTATION: inputs_digest(backend, facts)},
        },
        "spec": {
            "serviceAccountName": backend.name,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": grace_seconds,
            "restartPolicy": restart,
            "securityContext": _POD_SECURITY,
            "containers": [container],
            "volumes": _volumes(backend),
            **_pull_secrets(backend),
        },
    }


_POD_SECURITY: Manifest = {
    "runAsNonRoot": True,
    "runAsUser": USER_ID,
    "runAsGroup": USER_ID,
    "fsGroup": USER_ID,
    "seccompProfile": {"type": "RuntimeDefault"},
}
_CONTAINER_SECURITY: Manifest = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def _container(backend: Backend, facts: Facts, args: Sequence[str], env: Mapping[str, str]) -> Manifest:
    """The one container: settings and Secrets mounted read-only, a small /tmp as the only place to write."""
    image = backend.spec.image
    return {
        "name": "memplane",
        "image": facts.image(image),
        "imagePullPolicy": image.pull_policy if image else facts.pull_policy,
        "args": list(args),
        "env": [{"name": "MEMPLANE_CONFIG_FILE", "value": CONFIG_PATH}, *_environment(env)],
        "securityContext": _CONTAINER_SECURITY,
        "volumeMounts": [
            {"name": "config", "mountPath": "/etc/memplane", "readOnly": True},
            {"name": "secrets", "mountPath": SECRET_PATH, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - an emptyDir of the pod's own
        ],
    }


def _volumes(backend: Backend) -> list[Manifest]:
    return [
        {"name": "config", "configMap": {"name": config_name(backend), "defaultMode": 0o444}},
        {"name": "secrets", "projected": {"defaultMode": 0o440, "sources": _sources(backend)}},
        {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}},
    ]


def _pull_secrets(backend: Backend) -> Manifest:
    image = backend.spec.image
    if image is None or not image.pull_secrets:
        return {}
    return {"imagePullSecrets": [{"name": name} for name in image.pull_secrets]}


def _environment(env: Mapping[str, str]) -> list[Manifest]:
    return [{"name": name, "value": env[name]} for name in sorted(env)]


def _sources(backend: Backend) -> list[Manifest]:
    return [
        {"secret": {"name": ref.name, "items": [{"key": ref.key, "path": path}]}}
        for path, ref in secret_files(backend).items()
    ]


def http_probes(port_name: str = "http") -> Manifest:
    """Liveness never looks at dependencies; readiness asks whether the truth can be reached."""
    return {
        "startupProbe": {
            "httpGet": {"path": "/livez", "port": port_name},
            "periodSeconds": 2,
            "failureThreshold": 60,
            "timeoutSeconds": 5,
        },
        "livenessProbe": {
            "httpGet": {"path": "/livez", "port": port_name},
            "periodSeconds": 10,
            "failureThreshold": 6,
            "timeoutSeconds": 5,
        },
        "readinessProbe": {
            "httpGet": {"path": "/readyz", "port": port_name},
            "periodSeconds": 5,
            "failureThreshold": 2,
            "timeoutSeconds": 5,
        },
    }
