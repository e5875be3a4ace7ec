"""The outbox workers of one target: a Deployment, and KEDA's objects when they scale on the backlog."""

from __future__ import annotations

from memplane_operator.api.spec import Projection, WorkerAutoscaling
from memplane_operator.desired.config import HTTP_PORT, schema_name, worker_settings
from memplane_operator.desired.context import Backend, Facts, Manifest
from memplane_operator.desired.labels import metadata, selector
from memplane_operator.desired.pods import http_probes, pod_template

GRACE_SECONDS = 45
POLL_SECONDS = 5


def component(target: str) -> str:
    return f"worker-{target}"


def worker_name(backend: Backend, target: str) -> str:
    return f"{backend.name}-worker-{target}"


def projection_of(backend: Backend, target: str) -> Projection:
    projection = getattr(backend.spec.projections, target)
    assert isinstance(projection, Projection)
    return projection


def autoscaled(backend: Backend, facts: Facts, target: str) -> bool:
    """Whether KEDA owns the number of workers: declared, and KEDA is in the cluster."""
    return facts.keda and projection_of(backend, target).worker.autoscaling is not None


def fixed_replicas(backend: Backend, target: str) -> int:
    """The number of workers when no autoscaler owns it; without KEDA the minimum, but at least one."""
    worker = projection_of(backend, target).worker
    if worker.autoscaling is not None:
        return max(1, worker.autoscaling.min_replicas)
    return 1 if worker.replicas is None else worker.replicas


def deployment(backend: Backend, facts: Facts, target: str) -> Manifest:
    projection = projection_of(backend, target)
    spec: Manifest = {
        "revisionHistoryLimit": 3,
        "selector": {"matchLabels": selector(backend, component(target))},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 1}},
        "template": pod_template(
            backend,
            facts,
            component(target),
            ["worker", target],
            env=worker_settings(projection),
            resources=projection.worker.resources,
            port=HTTP_PORT,
            probes={key: probe for key, probe in http_probes().items() if key != "readinessProbe"},
            grace_seconds=GRACE_SECONDS,
        ),
    }
    if not autoscaled(backend, facts, target):
        spec["replicas"] = fixed_replicas(backend, target)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(backend, worker_name(backend, target), component(target)),
        "spec": spec,
    }


def metrics_service(backend: Backend, facts: Facts, target: str) -> Manifest | None:
    """A Service without an address: through it the backend's ServiceMonitor finds each worker's metrics."""
    if not (backend.spec.observability.service_monitor and facts.service_monitors):
        return None
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(backend, worker_name(backend, target), component(target)),
        "spec": {
            "clusterIP": "None",
            "selector": selector(backend, component(target)),
            "ports": [{"name": "http", "port": HTTP_PORT, "targetPort": "http", "protocol": "TCP"}],
        },
    }


def backlog_query(backend: Backend, target: str, scaling: WorkerAutoscaling) -> str:
    """Due plus processing events, counted no further than what the most workers would carry.

    Processing rows are part of it, so that the claims of a killed worker keep a replacement alive.
    """
    bound = scaling.max_replicas * scaling.target_backlog
    outbox = f'"{schema_name(backend)}".memory_outbox'
    return (
        f"SELECT count(*) FROM (SELECT 1 FROM {outbox} WHERE target = '{target}'"
        " AND ((status = 'pending' AND available_at <= now()) OR status = 'processing')"
        f" LIMIT {bound}) AS due"
    )


def scaled_object(backend: Backend, facts: Facts, target: str) -> Manifest | None:
    """KEDA's ScaledObject over the workers; None when KEDA is absent or nothing is declared."""
    scaling = projection_of(backend, target).worker.autoscaling
    if scaling is None or not facts.keda:
        return None
    trigger = {
        "type": "postgresql",
        "metadata": {
            "query": backlog_query(backend, target, scaling),
            "targetQueryValue": str(scaling.target_backlog),
            "activationTargetQueryValue": "0",
        },
        "authenticationRef": {"name": trigger_name(backend)},
    }
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": metadata(backend, worker_name(backend, target), component(target)),
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": worker_name(backend, target)},
            "pollingInterval": POLL_SECONDS,
            "cooldownPeriod": scaling.scale_down_seconds,
            "minReplicaCount": scaling.min_replicas,
            "maxReplicaCount": scaling.max_replicas,
            "advanced": {
                "horizontalPodAutoscalerConfig": {
                    "behavior": {"scaleDown": {"stabilizationWindowSeconds": scaling.scale_down_seconds}}
                }
            },
            "triggers": [trigger],
        },
    }


def trigger_name(backend: Backend) -> str:
    return f"{backend.name}-backlog"


def trigger_authentication(backend: Backend, facts: Facts) -> Manifest | None:
    """How KEDA reads the backlog: the store's own connection Secret."""
    if not any(autoscaled(backend, facts, target) for target in backend.targets()):
        return None
    ref = backend.spec.store.connection_secret_ref
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "TriggerAuthentication",
        "metadata": metadata(backend, trigger_name(backend), "autoscaling"),
        "spec": {"secretTargetRef": [{"parameter": "connection", "name": ref.name, "key": ref.key}]},
    }
