"""Backends and facts for the operator's tests."""

from __future__ import annotations

from typing import Any

from memplane_operator.api.spec import MemoryBackendSpec
from memplane_operator.desired.context import Backend, Facts

STORE = {"connectionSecretRef": {"name": "pg", "key": "dsn"}}
MILVUS = {"connectionSecretRef": {"name": "milvus", "key": "uri"}}
NEO4J = {"connectionSecretRef": {"name": "neo4j", "key": "uri"}}

MINIMAL: dict[str, Any] = {"store": STORE}
BOTH: dict[str, Any] = {"store": STORE, "projections": {"milvus": MILVUS, "neo4j": NEO4J}}
EVERYTHING: dict[str, Any] = {
    "store": {**STORE, "options": {"schema": "agents"}},
    "search": {"plugin": "hybrid", "options": {"rrfK": 30}},
    "embedding": {
        "plugin": "openai",
        "options": {"base_url": "https://models.example/v1", "model": "m", "dimensions": 3},
        "credentialsSecretRef": {"name": "model", "key": "api-key"},
        "batchSize": 32,
    },
    "projections": {
        "milvus": {
            **MILVUS,
            "mode": "Shadow",
            "worker": {
                "autoscaling": {"minReplicas": 0, "maxReplicas": 8, "targetBacklog": 100, "scaleDownSeconds": 60},
                "concurrency": 4,
                "batchSize": 500,
                "maxAttempts": 3,
                "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
            },
        },
        "neo4j": {**NEO4J, "worker": {"replicas": 2}},
    },
    "defaults": {"queryLimit": 50, "searchLimit": 5},
    "service": {
        "autoscaling": {"minReplicas": 2, "maxReplicas": 6, "targetCpuPercent": 60},
        "resources": {"requests": {"cpu": "250m", "memory": "256Mi"}, "limits": {"memory": "512Mi"}},
        "podDisruptionBudget": {"minAvailable": 1},
    },
    "reconciler": {
        "mode": "Audit",
        "fullSchedule": "0 4 * * 0",
        "incrementalSchedule": "@hourly",
        "timeZone": "Europe/Berlin",
        "deadlineSeconds": 600,
        "purge": {"schedule": "@daily", "fullIntervalSeconds": 700_000},
    },
    "consolidation": {
        "rules": ["exact", "near", "policy"],
        "nearThreshold": 0.98,
        "policy": {"plugin": "mine", "options": {"prefer": "newest"}},
    },
    "auth": {
        "mode": "jwt",
        "jwt": {"issuer": "https://id.example", "audience": "memory", "jwksUrl": "https://id.example/jwks"},
    },
    "networkPolicy": {"enabled": True, "allowFromNamespaces": ["agents"]},
    "observability": {"serviceMonitor": True},
    "image": {"repository": "registry.example/memplane", "tag": "1.2.3", "pullSecrets": ["registry"]},
    "deletionPolicy": "Delete",
}


def backend(spec: dict[str, Any] | None = None, *, name: str = "memory", generation: int = 1) -> Backend:
    return Backend(name, "agents", "uid-1", generation, MemoryBackendSpec.model_validate(spec or MINIMAL))


def facts(**changes: Any) -> Facts:
    return Facts(**{"operator_image": "memplane:test", "keda": True, "service_monitors": True, **changes})


def checksums(value: str = "a") -> dict[str, str]:
    names = ["pg/dsn", "milvus/uri", "neo4j/uri", "model/api-key", "memory-api-key/keys.yaml", "memory-status-key/key"]
    return {name: f"{value}-{name}" for name in names}
