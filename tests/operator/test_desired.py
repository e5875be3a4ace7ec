"""Desired objects: whole backends against golden files, and what each input changes.

`MEMPLANE_UPDATE_GOLDEN=1 pytest tests/operator` writes the golden files anew; read the difference before committing it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from memplane.settings import Settings
from memplane_operator.desired import jobs, worker
from memplane_operator.desired.build import build
from memplane_operator.desired.config import CONNECTION_FILE, settings
from memplane_operator.desired.context import Manifest
from tests.operator.objects import BOTH, EVERYTHING, MINIMAL, backend, checksums, facts

GOLDEN = Path(__file__).parent / "golden"


def everything(spec: dict[str, Any], **changes: Any) -> list[Manifest]:
    desired = build(backend(spec), facts(checksums=checksums(), **changes))
    return [*desired.foundation, *([desired.migration] if desired.migration else []), *desired.rollout]


def by_kind(spec: dict[str, Any], kind: str, **changes: Any) -> list[Manifest]:
    return [manifest for manifest in everything(spec, **changes) if manifest["kind"] == kind]


@pytest.mark.parametrize(("name", "spec"), [("minimal", MINIMAL), ("both", BOTH), ("everything", EVERYTHING)])
def test_objects_equal_the_golden_file(name: str, spec: dict[str, Any]) -> None:
    path = GOLDEN / f"{name}.yaml"
    got = everything(spec)
    if os.environ.get("MEMPLANE_UPDATE_GOLDEN"):
        path.write_text(yaml.safe_dump_all(got, sort_keys=False, width=120))
    assert got == list(yaml.safe_load_all(path.read_text()))


@pytest.mark.parametrize("spec", [MINIMAL, BOTH, EVERYTHING])
def test_the_settings_document_is_valid_for_the_service(spec: dict[str, Any]) -> None:
    Settings.model_validate(settings(backend(spec)))


@pytest.mark.parametrize("spec", [MINIMAL, BOTH, EVERYTHING])
def test_every_pod_is_restricted(spec: dict[str, Any]) -> None:
    pods = [m["spec"]["template"]["spec"] for m in everything(spec) if m["kind"] in ("Deployment", "Job")]
    pods += [m["spec"]["jobTemplate"]["spec"]["template"]["spec"] for m in everything(spec) if m["kind"] == "CronJob"]
    assert pods
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


def test_secrets_are_mounted_as_files_and_never_stand_in_an_environment_or_config() -> None:
    text = yaml.safe_dump_all(everything(EVERYTHING))
    assert "secretKeyRef" not in text
    assert "envFrom" not in text


@pytest.mark.parametrize("changed", ["pg/dsn", "milvus/uri", "neo4j/uri", "memory-status-key/key"])
def test_a_changed_secret_rolls_the_pods(changed: str) -> None:
    before = by_kind(BOTH, "Deployment")
    desired = build(backend(BOTH), facts(checksums={**checksums(), changed: "rotated"}))
    after = [manifest for manifest in desired.rollout if manifest["kind"] == "Deployment"]
    for old, new in zip(before, after, strict=True):
        assert old["spec"]["template"]["metadata"]["annotations"] != new["spec"]["template"]["metadata"]["annotations"]


def test_a_changed_setting_rolls_the_pods_and_a_changed_replica_count_does_not() -> None:
    def template(spec: dict[str, Any]) -> Any:
        return by_kind(spec, "Deployment")[0]["spec"]["template"]

    assert template({**MINIMAL, "defaults": {"queryLimit": 7}}) != template(MINIMAL)
    assert template({**MINIMAL, "service": {"replicas": 7}}) == template(MINIMAL)


def test_replicas_are_left_out_only_when_an_autoscaler_owns_them() -> None:
    spec = {**BOTH, "projections": {"milvus": EVERYTHING["projections"]["milvus"]}}
    with_keda = {m["metadata"]["name"]: m["spec"].get("replicas") for m in by_kind(spec, "Deployment")}
    without = {m["metadata"]["name"]: m["spec"].get("replicas") for m in by_kind(spec, "Deployment", keda=False)}
    assert with_keda == {"memory": 1, "memory-worker-milvus": None}
    assert without == {"memory": 1, "memory-worker-milvus": 1}, "max(1, minReplicas) without KEDA"
    assert by_kind(spec, "ScaledObject", keda=False) == []


def test_the_backlog_counts_due_and_processing_events_up_to_a_bound() -> None:
    target = backend(EVERYTHING)
    scaling = worker.projection_of(target, "milvus").worker.autoscaling
    assert scaling is not None
    query = worker.backlog_query(target, "milvus", scaling)
    assert '"agents".memory_outbox' in query
    assert "status = 'processing'" in query
    assert query.endswith("LIMIT 800) AS due")


def test_the_migration_is_named_by_image_connection_and_schema_alone() -> None:
    name = jobs.migration_name(backend(BOTH), facts(checksums=checksums()))
    assert jobs.migration_name(backend({**BOTH, "defaults": {"queryLimit": 3}}), facts(checksums=checksums())) == name
    assert jobs.migration_name(backend(BOTH), facts(checksums=checksums(), operator_image="memplane:next")) != name
    assert jobs.migration_name(backend(BOTH), facts(checksums={**checksums(), "pg/dsn": "moved"})) != name
    other_schema = {**BOTH, "store": {**BOTH["store"], "options": {"schema": "other"}}}
    assert jobs.migration_name(backend(other_schema), facts(checksums=checksums())) != name


@pytest.mark.parametrize(
    ("plugin", "given", "options"),
    [
        ("mysql", {}, {"dsn_file": CONNECTION_FILE}),
        ("mysql", {"tls": True}, {"tls": True, "dsn_file": CONNECTION_FILE}),
        ("milvus", {"milvus": {"database": "d"}}, {"milvus": {"uri_file": CONNECTION_FILE, "database": "d"}}),
        ("sqlite", {"path_file": CONNECTION_FILE}, {"path_file": CONNECTION_FILE}),
    ],
)
def test_another_store_gets_its_connection_and_no_postgresql(
    plugin: str, given: dict[str, Any], options: dict[str, Any]
) -> None:
    document = settings(backend({"store": {**MINIMAL["store"], "plugin": plugin, "options": given}}))
    assert "postgres" not in document
    assert document["store"] == {"plugin": plugin, "options": options}
    Settings.model_validate(document)


def test_other_stores_are_not_migrated_by_us() -> None:
    assert build(backend({"store": {**MINIMAL["store"], "plugin": "mysql"}}), facts()).migration is None
