"""Conditions: transition times, readiness, and what children and the service say."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from memplane.api.admin.models import ReconciliationRun
from memplane_operator.conditions import Finding, merge, ready
from memplane_operator.observe import (
    converged,
    job_state,
    migrated,
    service_findings,
    target_findings,
    target_statuses,
    worker_findings,
)
from tests.operator.objects import BOTH, backend


def test_the_transition_time_moves_only_with_the_status() -> None:
    first = merge([], [Finding("Ready", "False", "Migrating", "m")], generation=1, now="t1")
    same = merge(first, [Finding("Ready", "False", "Other", "n")], generation=2, now="t2")
    other = merge(same, [Finding("Ready", "True", "Serving")], generation=3, now="t3")
    assert [c[0]["lastTransitionTime"] for c in (first, same, other)] == ["t1", "t1", "t3"]
    assert [c[0]["observedGeneration"] for c in (first, same, other)] == [1, 2, 3]


def test_a_condition_that_no_longer_applies_is_dropped() -> None:
    old = merge([], [Finding("Paused", "True", "Paused")], generation=1, now="t")
    assert merge(old, [Finding("Ready", "True", "Serving")], generation=1, now="t")[0]["type"] == "Ready"


@pytest.mark.parametrize(
    ("finding", "expected"),
    [
        (Finding("Migrated", "False", "MigrationFailed", "read the log"), "False"),
        (Finding("StoreReachable", "False", "NoAnswer", "x"), "False"),
        (Finding("MilvusReachable", "False", "NoAnswer", "x"), "True"),
        (Finding("Converged", "False", "Backlog", "x"), "True"),
        (Finding("AutoscalingAvailable", "False", "KedaMissing", "x"), "True"),
    ],
)
def test_a_backend_serves_without_its_projections_but_not_without_its_store(finding: Finding, expected: str) -> None:
    assert ready([finding]).status == expected


@pytest.mark.parametrize(
    ("conditions", "state"),
    [
        ([], "running"),
        ([{"type": "Suspended", "status": "True"}], "running"),
        ([{"type": "Complete", "status": "True"}], "succeeded"),
        ([{"type": "Failed", "status": "True"}], "failed"),
        ([{"type": "Failed", "status": "False"}], "running"),
    ],
)
def test_state_of_a_job(conditions: list[dict[str, str]], state: str) -> None:
    assert job_state({"status": {"conditions": conditions}}) == state


def test_a_failed_migration_says_what_to_do() -> None:
    finding = migrated({"status": {"conditions": [{"type": "Failed", "status": "True"}]}}, "m-1")
    assert finding.status == "False"
    assert "kubectl logs job/m-1" in finding.message


def deployment(ready_replicas: int, wanted: int = 1, *, current: bool = True) -> dict[str, Any]:
    return {
        "metadata": {"generation": 2},
        "spec": {"replicas": wanted},
        "status": {
            "observedGeneration": 2 if current else 1,
            "readyReplicas": ready_replicas,
            "updatedReplicas": wanted if current else 0,
        },
    }


def test_the_store_is_reachable_when_the_service_says_so() -> None:
    target = backend(BOTH)
    up = {"store": {"ok": True}}
    assert {f.type: f.status for f in service_findings(target, deployment(1), up)} == {
        "StoreReachable": "True",
        "OptionsValid": "True",
    }
    assert service_findings(target, deployment(0), None)[0].status == "Unknown"
    assert service_findings(target, deployment(1), {"store": {"ok": False}})[0].status == "False"
    assert service_findings(target, deployment(0, 0), None)[0].reason == "ScaledToZero"


def test_targets_and_convergence() -> None:
    target = backend(BOTH)
    status: dict[str, Any] = {"targets": {"milvus": {"reachable": True}, "neo4j": {"reachable": False}}}
    assert [(f.type, f.status) for f in target_findings(status, target)] == [
        ("MilvusReachable", "True"),
        ("Neo4jReachable", "False"),
    ]
    assert converged(status, target)[0].status == "True"
    status["targets"]["neo4j"]["backlog"] = 3
    assert converged(status, target)[0].reason == "Backlog"
    status["targets"]["neo4j"]["dead"] = 1
    assert converged(status, target)[0].reason == "DeadEvents"


def test_workers_are_healthy_when_all_wanted_are_ready() -> None:
    target = backend(BOTH)
    live = {
        ("Deployment", "memory-worker-milvus"): deployment(1),
        ("Deployment", "memory-worker-neo4j"): deployment(1, 2),
    }
    assert worker_findings(target, live)[0].status == "False"
    live[("Deployment", "memory-worker-neo4j")] = deployment(2, 2)
    assert worker_findings(target, live)[0].status == "True"


def test_the_last_full_run_stands_in_the_status() -> None:
    run = ReconciliationRun(
        id=1,
        target="milvus",
        kind="full",
        mode="repair",
        state="completed",
        started_at=datetime(2026, 1, 1, tzinfo=UTC),
        finished_at=datetime(2026, 1, 1, 0, 1, tzinfo=UTC),
        scanned=7,
        mismatches={"missing": 2, "stale": 1},
        repaired={},
    )
    reported = {"targets": {"milvus": {"lastFullRun": run.model_dump(mode="json", by_alias=True), "drift": 3}}}
    milvus, neo4j = target_statuses(reported, backend(BOTH), {})
    assert milvus["lastFullRun"] == {
        "finishedAt": "2026-01-01T00:01:00Z",
        "state": "completed",
        "scanned": 7,
        "drift": [{"kind": "missing", "count": 2}, {"kind": "stale", "count": 1}],
    }
    assert milvus["drift"] == 3
    assert "lastFullRun" not in neo4j


def test_the_last_incremental_run_stands_beside_it() -> None:
    entry = {"lastIncrementalRun": {"finishedAt": "2026-01-01T00:01:00Z", "state": "completed", "mismatches": {}}}
    milvus, _ = target_statuses({"targets": {"milvus": entry}}, backend(BOTH), {})
    assert milvus["lastIncrementalRun"]["drift"] == []
    assert milvus["mode"] == "Live"
