"""What children and the service say, turned into findings (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memplane_operator.conditions import Finding
from memplane_operator.desired.context import Backend, Manifest
from memplane_operator.desired.worker import projection_of, worker_name
from memplane_operator.scheduled import RUNS

Status = Mapping[str, Any]


def job_state(job: Manifest | None) -> str:
    """absent, running, succeeded or failed."""
    if job is None:
        return "absent"
    for condition in job.get("status", {}).get("conditions", []):
        if condition.get("status") == "True" and condition.get("type") in ("Complete", "SuccessCriteriaMet"):
            return "succeeded"
        if condition.get("status") == "True" and condition.get("type") in ("Failed", "FailureTarget"):
            return "failed"
    return "running"


def migrated(job: Manifest | None, name: str) -> Finding:
    """The condition Migrated from the state of the migration Job."""
    state = job_state(job)
    if state == "succeeded":
        return Finding("Migrated", "True", "SchemaCurrent", "The store's schema fits the image")
    if state == "failed":
        text = (
            f"Job {name} failed, the old release keeps serving: read `kubectl logs job/{name}`, mend the cause, "
            "then delete the Job to try again"
        )
        return Finding("Migrated", "False", "MigrationFailed", text)
    return Finding("Migrated", "Unknown", "Migrating", f"Job {name} has not finished yet")


def ready_replicas(deployment: Manifest | None) -> int:
    """Ready pods of a Deployment."""
    return int((deployment or {}).get("status", {}).get("readyReplicas") or 0)


def _rolled_out(deployment: Manifest | None) -> tuple[bool, int, int]:
    """Whether the newest template runs everywhere, and ready and wanted replicas."""
    if deployment is None:
        return False, 0, 1
    status, wanted = deployment.get("status", {}), deployment["spec"].get("replicas", 1)
    ready = status.get("readyReplicas", 0)
    current = status.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 0)
    return current and status.get("updatedReplicas", 0) >= wanted, ready, wanted


def service_findings(backend: Backend, deployment: Manifest | None, status: Status | None) -> list[Finding]:
    """Reconciled and StoreReachable and OptionsValid from the service's Deployment and its own answer."""
    current, ready, wanted = _rolled_out(deployment)
    if wanted == 0:
        return [
            Finding("StoreReachable", "Unknown", "ScaledToZero", "The service has no replicas: raise service.replicas")
        ]
    if ready == 0 or status is None:
        text = f"{ready} of {wanted} service pods are ready: see `kubectl describe deploy {backend.name}` and pod logs"
        return [Finding("StoreReachable", "Unknown", "ServiceNotReady", text)]
    reachable = bool(status.get("store", {}).get("ok", True))
    text = "The store answers" if reachable else "The store does not answer: check its server and the connection Secret"
    finding = Finding("StoreReachable", "True" if reachable else "False", "Answers" if reachable else "NoAnswer", text)
    options = Finding("OptionsValid", "True", "Accepted", "The plugins accepted their options")
    return [finding, options] if current else [finding]


def target_findings(status: Status | None, backend: Backend) -> list[Finding]:
    """MilvusReachable and Neo4jReachable."""
    names = {"milvus": "MilvusReachable", "neo4j": "Neo4jReachable"}
    findings = []
    for target in backend.targets():
        entry = ((status or {}).get("targets") or {}).get(target)
        if entry is None or entry.get("reachable") is None:
            findings.append(Finding(names[target], "Unknown", "NotReported", "The service has not reported on it yet"))
        elif entry["reachable"]:
            findings.append(Finding(names[target], "True", "Answers", f"{target} answers"))
        else:
            text = f"{target} does not answer: its events wait and are retried; check its server and connection Secret"
            findings.append(Finding(names[target], "False", "NoAnswer", text))
    return findings


def worker_findings(backend: Backend, live: Mapping[tuple[str, str], Manifest]) -> list[Finding]:
    """WorkersHealthy: every wanted worker of every target is ready."""
    if not backend.targets():
        return []
    for target in backend.targets():
        name = worker_name(backend, target)
        _, ready, wanted = _rolled_out(live.get(("Deployment", name)))
        if ready < wanted:
            text = f"{ready} of {wanted} {target} workers are ready: see `kubectl describe deploy {name}`"
            return [Finding("WorkersHealthy", "False", "WorkersNotReady", text)]
    return [Finding("WorkersHealthy", "True", "AllReady", "All wanted workers are ready")]


def converged(status: Status | None, backend: Backend) -> list[Finding]:
    """Converged: nothing waits, nothing is dead, the last comparison found no difference."""
    if not backend.targets():
        return []
    if status is None:
        return [Finding("Converged", "Unknown", "NotReported", "The service has not reported yet")]
    targets = status.get("targets") or {}
    total = {
        key: sum(int((targets.get(t) or {}).get(key) or 0) for t in backend.targets())
        for key in ("backlog", "dead", "drift")
    }
    if total["dead"]:
        text = f"{total['dead']} events are dead: `memplane outbox list --status dead`, then replay or discard them"
        return [Finding("Converged", "False", "DeadEvents", text)]
    if total["drift"]:
        return [Finding("Converged", "False", "Drift", f"The last comparison found {total['drift']} differences")]
    if total["backlog"]:
        # No number here: the condition would be rewritten with every event.
        return [Finding("Converged", "False", "Backlog", "Events wait for their workers")]
    return [Finding("Converged", "True", "NoDifference", "No event waits and the last comparison found no difference")]


def target_statuses(
    status: Status | None, backend: Backend, live: Mapping[tuple[str, str], Manifest]
) -> list[dict[str, Any]]:
    """`status.targets` from the service's numbers."""
    result = []
    for target in backend.targets():
        entry = ((status or {}).get("targets") or {}).get(target) or {}
        deployment = live.get(("Deployment", worker_name(backend, target))) or {}
        item: dict[str, Any] = {
            "name": target,
            "mode": projection_of(backend, target).mode,
            "backlog": int(entry.get("backlog") or 0),
            "lagSeconds": int(entry.get("lagSeconds") or 0),
            "dead": int(entry.get("dead") or 0),
            "drift": int(entry.get("drift") or 0),
            "replicas": int(deployment.get("status", {}).get("readyReplicas", 0)),
        }
        result.append(item | _runs(entry))
    return result


def _runs(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The newest finished comparisons of a target, by kind."""
    found = {}
    for name in RUNS.values():
        run = entry.get(name)
        if isinstance(run, Mapping) and run.get("finishedAt"):
            found[name] = {
                "finishedAt": run["finishedAt"],
                "state": run.get("state", "completed"),
                "scanned": int(run.get("scanned") or 0),
                "drift": [{"kind": k, "count": int(v)} for k, v in sorted((run.get("mismatches") or {}).items())],
            }
    return found
