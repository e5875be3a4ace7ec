"""Bad objects are refused by the API server with words that help; what it cannot see becomes a condition."""

from __future__ import annotations

import copy
import json
from typing import Any

import kubernetes
import pytest

from e2e.conftest import Space
from e2e.waiting import eventually

REF = {"name": "stores", "key": "postgres"}
GOOD: dict[str, Any] = {
    "store": {"connectionSecretRef": REF},
    "projections": {"milvus": {"connectionSecretRef": REF, "worker": {}}},
    "service": {},
    "reconciler": {},
    "image": {"repository": "memplane", "tag": "1"},
}

BAD: list[tuple[str, str, Any, str]] = [
    ("no store", "store", None, "spec.store: Required value"),
    ("no secret", "store.connectionSecretRef", None, "connectionSecretRef: Required value"),
    ("empty secret name", "store.connectionSecretRef.name", "", "should be at least 1 chars long"),
    ("bad secret key", "store.connectionSecretRef.key", "a b", "should match"),
    ("bad plugin name", "store.plugin", "Postgres!", "should match"),
    ("projections without postgres", "store.plugin", "mysql", "projections need store.plugin postgres"),
    ("unknown mode", "projections.milvus.mode", "Dry", "Unsupported value"),
    ("both scalings", "projections.milvus.worker", {"replicas": 1, "autoscaling": {"maxReplicas": 2}}, "not both"),
    (
        "minimum over maximum",
        "projections.milvus.worker.autoscaling",
        {"minReplicas": 5, "maxReplicas": 2},
        "must not exceed",
    ),
    ("no maximum", "projections.milvus.worker.autoscaling", {"minReplicas": 1}, "maxReplicas: Required value"),
    ("negative workers", "projections.milvus.worker.replicas", -1, "greater than or equal to 0"),
    ("huge batches", "projections.milvus.worker.batchSize", 100_000, "less than or equal to 5000"),
    ("no concurrency", "projections.milvus.worker.concurrency", 0, "greater than or equal to 1"),
    ("text for a number", "projections.milvus.worker.maxAttempts", "ten", "must be of type integer"),
    ("bad quantity", "projections.milvus.worker.resources", {"requests": {"cpu": "lots"}}, "should match"),
    ("service with both scalings", "service", {"replicas": 1, "autoscaling": {"maxReplicas": 2}}, "not both"),
    ("cpu scaling without a request", "service", {"autoscaling": {"maxReplicas": 2}}, "resources.requests.cpu"),
    ("query limit", "defaults", {"queryLimit": 10_001}, "less than or equal to 10000"),
    ("search limit", "defaults", {"searchLimit": 0}, "greater than or equal to 1"),
    ("schedule", "reconciler.fullSchedule", "whenever", "cron expression of five fields"),
    ("reconciler mode", "reconciler.mode", "Fix", "Unsupported value"),
    ("incremental schedule", "reconciler.incrementalSchedule", "now and then", "or empty for none"),
    ("purge schedule", "reconciler.purge", {"schedule": "1 2"}, "cron expression of five fields"),
    (
        "purge before every retry is over",
        "reconciler.purge",
        {"retentionSeconds": 604_800},
        "must exceed fullIntervalSeconds by at least five days",
    ),
    ("consolidation without rules", "consolidation", {}, "rules: Required value"),
    ("unknown rule", "consolidation", {"rules": ["guess"]}, "Unsupported value"),
    ("rule twice", "consolidation", {"rules": ["near", "near"]}, "Duplicate value"),
    ("far duplicates", "consolidation", {"rules": ["near"], "nearThreshold": 0.2}, "greater than or equal to 0.5"),
    ("jwt without issuer", "auth", {"mode": "jwt"}, "needs auth.jwt"),
    (
        "jwt beside api keys",
        "auth",
        {"jwt": {"issuer": "i", "audience": "a", "jwksUrl": "https://i/k"}},
        "only used with",
    ),
    (
        "jwks address",
        "auth",
        {"mode": "jwt", "jwt": {"issuer": "i", "audience": "a", "jwksUrl": "ftp://i"}},
        "should match",
    ),
    ("image without tag", "image", {"repository": "memplane"}, "image.tag or image.digest"),
    ("digest", "image", {"repository": "memplane", "digest": "sha256:1"}, "should match"),
    ("deletion policy", "deletionPolicy", "Orphan", "Unsupported value"),
    ("unknown field", "projektions", {}, "unknown field"),
]


def with_change(path: str, value: Any) -> dict[str, Any]:
    spec = copy.deepcopy(GOOD)
    *parents, last = path.split(".")
    node = spec
    for name in parents:
        node = node.setdefault(name, {})
    if value is None:
        node.pop(last, None)
    else:
        node[last] = value
    return spec


def refusal(space: Space, body: dict[str, Any]) -> str:
    """The API server's message; empty when it would accept the object."""
    try:
        space.kube.custom.create_namespaced_custom_object(
            "memplane.dev", "v1alpha1", space.name, "memorybackends", body, field_validation="Strict", dry_run="All"
        )
    except kubernetes.client.ApiException as error:
        return str(json.loads(error.body)["message"])
    return ""


def test_bad_objects_are_refused_with_words_that_help(space: Space) -> None:
    wrong = []
    for title, path, value, expected in BAD:
        body = {
            "apiVersion": "memplane.dev/v1alpha1",
            "kind": "MemoryBackend",
            "metadata": {"name": "bad", "namespace": space.name},
            "spec": with_change(path, value),
        }
        message = refusal(space, body)
        if expected not in message:
            wrong.append(f"{title}: {message or 'accepted'}")
    for name, expected in (("m" * 33, "at most 32 characters"), ("a.b", "no dots"), ("1st", "begin with a letter")):
        body = {
            "apiVersion": "memplane.dev/v1alpha1",
            "kind": "MemoryBackend",
            "metadata": {"name": name, "namespace": space.name},
            "spec": GOOD,
        }
        message = refusal(space, body)
        if expected not in message:
            wrong.append(f"the name {name}: {message or 'accepted'}")
    assert len(BAD) >= 20
    assert not wrong, "\n".join(wrong)


def test_the_good_object_is_accepted(space: Space) -> None:
    space.kube.apply_backend(space.name, "memory", {**GOOD, "paused": True})
    eventually("it is seen", lambda: space.kube.condition(space.name, "memory", "Paused").get("status") == "True")
    assert space.kube.deployment(space.name, "memory") is None, "a paused backend is left alone"


@pytest.mark.parametrize(
    ("name", "key", "reason"), [("absent", "postgres", "SecretMissing"), ("stores", "absent", "SecretKeyMissing")]
)
def test_a_missing_secret_becomes_a_condition_and_is_waited_for(space: Space, name: str, key: str, reason: str) -> None:
    spec = space.spec(projections={})
    spec["store"]["connectionSecretRef"] = {"name": name, "key": key}
    space.kube.apply_backend(space.name, "memory", spec)
    eventually(
        "the condition names it",
        lambda: space.kube.condition(space.name, "memory", "Ready").get("reason") == reason,
        timeout=120,
    )
    assert name in space.kube.condition(space.name, "memory", "Ready")["message"]
    space.kube.secret(space.name, name, {key: space.addresses["postgres"]})
    space.ready()
