"""What a backend does by the clock: CronJobs for comparison, purge and consolidation.

Their own settings come by the environment of the job, not by the shared document: a change of them rolls no pod.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from memplane_operator.api.schedules import Consolidation, Purge
from memplane_operator.desired.context import Backend, Facts, Manifest
from memplane_operator.desired.labels import metadata
from memplane_operator.desired.pods import pod_template
from memplane_operator.desired.worker import projection_of

DIFFERENCES_FOUND = 6
"""Exit code of an audit that found differences: its job is not tried again."""
STARTING_DEADLINE_SECONDS = 600
KEPT_SECONDS = 86_400


@dataclass(frozen=True, slots=True)
class Schedule:
    """One CronJob. `key` names it in the status; `suffix`, after the backend's name, in the cluster."""

    key: str
    suffix: str
    cron: str
    time_zone: str
    deadline_seconds: int
    args: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict, hash=False)

    def name(self, backend: Backend) -> str:
        return f"{backend.name}-{self.suffix}"


def schedules(backend: Backend) -> list[Schedule]:
    """Everything that the backend does by the clock, in a fixed order."""
    reconciler = backend.spec.reconciler
    found = [_comparison(backend, target, "full") for target in backend.targets()]
    if reconciler.incremental_schedule:
        found += [_comparison(backend, target, "incremental") for target in backend.targets()]
    if reconciler.purge is not None:
        found.append(_purge(backend, reconciler.purge))
    if backend.spec.consolidation is not None:
        found.append(_consolidation(backend.spec.consolidation))
    return found


def _comparison(backend: Backend, target: str, kind: str) -> Schedule:
    reconciler = backend.spec.reconciler
    # A repair of a target in Shadow mode could never take effect: its workers write nothing.
    repair = reconciler.mode == "Repair" and projection_of(backend, target).mode == "Live"
    full = kind == "full"
    return Schedule(
        key=f"{kind}-{target}",
        suffix=f"reconcile-{target}" if full else f"incremental-{target}",
        cron=reconciler.full_schedule if full else reconciler.incremental_schedule,
        time_zone=reconciler.time_zone,
        deadline_seconds=reconciler.deadline_seconds,
        args=("--json", "reconcile", target, f"--{kind}", "--repair" if repair else "--audit"),
    )


def _purge(backend: Backend, purge: Purge) -> Schedule:
    projections = [projection_of(backend, target) for target in backend.targets()]
    shadow = any(projection.mode == "Shadow" for projection in projections)
    return Schedule(
        key="purge",
        suffix="purge",
        cron=purge.schedule,
        time_zone=backend.spec.reconciler.time_zone,
        deadline_seconds=backend.spec.reconciler.deadline_seconds,
        args=("--json", "purge"),
        env={
            "MEMPLANE_PURGE__RETENTION_SECONDS": str(purge.retention_seconds),
            "MEMPLANE_PURGE__FULL_INTERVAL_SECONDS": str(purge.full_interval_seconds),
            "MEMPLANE_PURGE__RUNS_RETENTION_SECONDS": str(purge.runs_retention_seconds),
            "MEMPLANE_PURGE__AUDIT_RETENTION_SECONDS": str(purge.audit_retention_seconds),
            # Purge asks how long an event may be retried, and keeps everything while a target is in Shadow mode.
            "MEMPLANE_OUTBOX__MAX_ATTEMPTS": str(max((p.worker.max_attempts for p in projections), default=10)),
            "MEMPLANE_OUTBOX__MODE": "Shadow" if shadow else "Live",
        },
    )


def _consolidation(declared: Consolidation) -> Schedule:
    return Schedule(
        key="consolidation",
        suffix="consolidation",
        cron=declared.schedule,
        time_zone=declared.time_zone,
        deadline_seconds=declared.deadline_seconds,
        args=("--json", "consolidate", f"--{declared.mode.lower()}"),
        env={
            "MEMPLANE_CONSOLIDATION__RULES": json.dumps(list(declared.rules)),
            "MEMPLANE_CONSOLIDATION__NEAR_THRESHOLD": str(declared.near_threshold),
            "MEMPLANE_CONSOLIDATION__HALF_LIFE_SECONDS": str(declared.half_life_seconds),
            "MEMPLANE_CONSOLIDATION__POLICY": declared.policy.plugin,
            "MEMPLANE_CONSOLIDATION__POLICY_OPTIONS": json.dumps(declared.policy.options or {}, sort_keys=True),
        },
    )


def cron_jobs(backend: Backend, facts: Facts) -> list[Manifest]:
    """The CronJobs of all schedules: never two runs of one at once, and a deadline for each."""
    return [_cron_job(backend, facts, schedule) for schedule in schedules(backend)]


def _cron_job(backend: Backend, facts: Facts, schedule: Schedule) -> Manifest:
    component = schedule.suffix
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": metadata(backend, schedule.name(backend), component),
        "spec": {
            "schedule": schedule.cron,
            "timeZone": schedule.time_zone,
            "concurrencyPolicy": "Forbid",
            "startingDeadlineSeconds": STARTING_DEADLINE_SECONDS,
            "successfulJobsHistoryLimit": 1,
            "failedJobsHistoryLimit": 2,
            "jobTemplate": {
                "spec": {
                    "backoffLimit": 1,
                    "activeDeadlineSeconds": schedule.deadline_seconds,
                    "ttlSecondsAfterFinished": KEPT_SECONDS,
                    "podFailurePolicy": _AUDITS_ARE_NOT_REPEATED,
                    "template": pod_template(
                        backend, facts, component, schedule.args, env=schedule.env, restart="Never"
                    ),
                }
            },
        },
    }


_AUDITS_ARE_NOT_REPEATED: Manifest = {
    "rules": [
        {
            "action": "FailJob",
            "onExitCodes": {"containerName": "memplane", "operator": "In", "values": [DIFFERENCES_FOUND]},
        }
    ]
}
