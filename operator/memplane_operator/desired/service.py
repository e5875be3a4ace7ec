"""The memory service of a backend: Deployment, Service, HorizontalPodAutoscaler, PodDisruptionBudget, policies."""

from __future__ import annotations

from memplane_operator.desired.config import HTTP_PORT
from memplane_operator.desired.context import Backend, Facts, Manifest
from memplane_operator.desired.labels import BACKEND_LABEL, metadata, selector
from memplane_operator.desired.pods import http_probes, pod_template

COMPONENT = "service"
GRACE_SECONDS = 60


def service_account(backend: Backend) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata(backend, backend.name, "account"),
        "automountServiceAccountToken": False,
    }


def service(backend: Backend) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(backend, backend.name, COMPONENT),
        "spec": {
            "type": "ClusterIP",
            "selector": selector(backend, COMPONENT),
            "ports": [{"name": "http", "port": 80, "targetPort": "http", "protocol": "TCP"}],
        },
    }


def endpoint(backend: Backend) -> str:
    """The address of the service inside the cluster."""
    return f"http://{backend.name}.{backend.namespace}.svc"


def deployment(backend: Backend, facts: Facts) -> Manifest:
    """The service's Deployment; `replicas` is left out when an autoscaler owns it."""
    declared = backend.spec.service
    spec: Manifest = {
        "revisionHistoryLimit": 3,
        "selector": {"matchLabels": selector(backend, COMPONENT)},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
        "template": pod_template(
            backend,
            facts,
            COMPONENT,
            ["serve"],
            resources=declared.resources,
            port=HTTP_PORT,
            probes={**http_probes(), **_pre_stop()},
            grace_seconds=GRACE_SECONDS,
        ),
    }
    if declared.autoscaling is None:
        spec["replicas"] = 1 if declared.replicas is None else declared.replicas
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(backend, backend.name, COMPONENT),
        "spec": spec,
    }


def _pre_stop() -> Manifest:
    """Endpoints are withdrawn while the pod still answers, so that a rollout interrupts nobody."""
    return {"lifecycle": {"preStop": {"sleep": {"seconds": 5}}}}


def autoscaler(backend: Backend) -> Manifest | None:
    """The HorizontalPodAutoscaler on CPU, when declared."""
    scaling = backend.spec.service.autoscaling
    if scaling is None:
        return None
    target = {"type": "Utilization", "averageUtilization": scaling.target_cpu_percent}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": metadata(backend, backend.name, COMPONENT),
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": backend.name},
            "minReplicas": scaling.min_replicas,
            "maxReplicas": scaling.max_replicas,
            "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": target}}],
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": scaling.scale_down_seconds}},
        },
    }


def disruption_budget(backend: Backend) -> Manifest | None:
    budget = backend.spec.service.pod_disruption_budget
    if budget is None:
        return None
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(backend, backend.name, COMPONENT),
        "spec": {
            "minAvailable": budget.min_available,
            "selector": {"matchLabels": selector(backend, COMPONENT)},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def network_policy(backend: Backend) -> Manifest | None:
    """Who may reach the backend's pods: its own namespace and the namespaces named, on the HTTP port."""
    policy = backend.spec.network_policy
    if not policy.enabled:
        return None
    sources: list[Manifest] = [{"podSelector": {}}]
    sources += [
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}
        for name in policy.allow_from_namespaces
    ]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(backend, backend.name, "network"),
        "spec": {
            "podSelector": {"matchLabels": {BACKEND_LABEL: backend.name}},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": sources, "ports": [{"protocol": "TCP", "port": HTTP_PORT}]}],
        },
    }


def service_monitor(backend: Backend, facts: Facts) -> Manifest | None:
    if not (backend.spec.observability.service_monitor and facts.service_monitors):
        return None
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "ServiceMonitor",
        "metadata": metadata(backend, backend.name, COMPONENT),
        "spec": {
            # The service's own Service and those of the workers: one `job` for all processes of a backend.
            "selector": {"matchLabels": {BACKEND_LABEL: backend.name}},
            "jobLabel": BACKEND_LABEL,
            "endpoints": [{"port": "http", "path": "/metrics", "interval": "30s"}],
        },
    }
