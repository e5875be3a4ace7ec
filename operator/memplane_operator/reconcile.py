"""One level-based reconciliation of one backend: desired objects → apply what differs → prune → findings.

Nothing is remembered between runs; whatever triggered it, the outcome depends on the spec and the cluster alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from memplane_operator import children, observe
from memplane_operator.children import AUTOSCALERS, Changes, Key
from memplane_operator.cluster import Cluster
from memplane_operator.conditions import Finding
from memplane_operator.desired import jobs
from memplane_operator.desired.build import Desired, build
from memplane_operator.desired.context import Backend, Facts, Manifest
from memplane_operator.desired.service import endpoint
from memplane_operator.scheduled import schedule_statuses


@dataclass(slots=True)
class Result:
    """What a reconciliation found and did. `rolled_out` is False while the migration holds the rollout back."""

    findings: list[Finding] = field(default_factory=list)
    changes: Changes = field(default_factory=Changes)
    live: dict[Key, Manifest] = field(default_factory=dict)
    rolled_out: bool = False


async def reconcile(cluster: Cluster, backend: Backend, facts: Facts) -> Result:
    """Bring the backend's children to the desired state as far as the migration allows."""
    desired = build(backend, facts)
    result = Result(live=await children.live_children(cluster, backend, facts))
    await children.apply(cluster, result.live, desired.foundation, result.changes)
    if not await _migrated(cluster, backend, facts, desired, result):
        return result
    wanted = [*desired.foundation, *desired.rollout, *([desired.migration] if desired.migration else [])]
    # An autoscaler that is no longer wanted goes before the fixed number comes, or the two would fight.
    await children.prune(cluster, backend, result.live, wanted, result.changes, only=AUTOSCALERS)
    await children.apply(cluster, result.live, desired.rollout, result.changes)
    await children.prune(cluster, backend, result.live, wanted, result.changes)
    result.rolled_out = True
    result.findings.append(Finding("Reconciled", "True", "Applied", "All objects are as declared"))
    result.findings += _autoscaling(backend, facts)
    return result


async def _migrated(cluster: Cluster, backend: Backend, facts: Facts, desired: Desired, result: Result) -> bool:
    """Whether the rollout may go on; starts the migration Job when there is none."""
    if desired.migration is None:
        return True
    name = jobs.migration_name(backend, facts)
    job = result.live.get(("Job", name))
    if job is None:
        await cluster.apply(desired.migration)
        result.changes.applied.append(("Job", name))
    finding = observe.migrated(job, name)
    result.findings.append(finding)
    if finding.status == "True":
        return True
    reason = "MigrationFailed" if finding.status == "False" else "Migrating"
    result.findings.append(Finding("Reconciled", "False", reason, finding.message))
    return False


def _autoscaling(backend: Backend, facts: Facts) -> list[Finding]:
    projections = backend.spec.projections
    declared = [
        p for p in (projections.milvus, projections.neo4j) if p is not None and p.worker.autoscaling is not None
    ]
    if not declared:
        return []
    if facts.keda:
        return [Finding("AutoscalingAvailable", "True", "KedaServes", "KEDA scales the workers on their backlog")]
    text = (
        "KEDA is not in the cluster: workers run with their minimum (at least 1); install KEDA or set worker.replicas"
    )
    return [Finding("AutoscalingAvailable", "False", "KedaMissing", text)]


def status_document(
    backend: Backend, result: Result, service: dict[str, Any] | None, conditions: list[dict[str, Any]]
) -> dict[str, Any]:
    """The status to report."""
    targets = observe.target_statuses(service, backend, result.live)
    return {
        "observedGeneration": backend.generation,
        "conditions": conditions,
        "endpoint": endpoint(backend),
        "schemaVersion": str((service or {}).get("schemaVersion") or ""),
        "summary": {
            "backlog": sum(t["backlog"] for t in targets),
            "lagSeconds": max((t["lagSeconds"] for t in targets), default=0),
            "dead": sum(t["dead"] for t in targets),
            "drift": sum(t["drift"] for t in targets),
        },
        "targets": targets,
        "schedules": schedule_statuses(backend, result.live),
    }
