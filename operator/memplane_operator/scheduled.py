"""What the CronJobs say, turned into findings and status entries (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from memplane_operator.conditions import Finding
from memplane_operator.desired.context import Backend, Manifest
from memplane_operator.desired.labels import BACKEND_LABEL, COMPONENT_LABEL
from memplane_operator.desired.schedules import Schedule, schedules
from memplane_operator.desired.worker import projection_of

Live = Mapping[tuple[str, str], Manifest]
Outcome = Literal["never", "running", "again", "succeeded", "failed"]
"""`running`: the first run is under way; `again`: a later one is, after a run that ended well."""
RUNS = {"full": "lastFullRun", "incremental": "lastIncrementalRun"}
"""Names, in the service's status, of the newest finished comparison of a kind."""


def outcome(cron_job: Manifest | None, finished_at: str = "") -> Outcome:
    """How the last run of a CronJob went. `finished_at`: when a run was recorded as completed, whatever its exit code.

    An audit that finds differences ends with an exit code of its own and counts as failed in the cluster, though it
    did its work. Timestamps are RFC 3339 in UTC, so they compare as texts.
    """
    status = (cron_job or {}).get("status", {})
    scheduled = str(status.get("lastScheduleTime") or "")
    if not scheduled:
        return "never"
    ended = max(str(status.get("lastSuccessfulTime") or ""), finished_at)
    if status.get("active"):
        return "again" if ended else "running"
    return "succeeded" if ended >= scheduled else "failed"


def schedule_findings(
    backend: Backend, live: Live, status: Mapping[str, Any] | None, old: Iterable[Mapping[str, Any]]
) -> list[Finding]:
    """ComparisonsSucceed, PurgeSucceeds and ConsolidationSucceeds, each for what is declared, and Shadow.

    While a run is under way, a failure of the run before (in `old`) stands until this one has ended.
    """
    groups: dict[str, list[Schedule]] = {}
    names = {"purge": "PurgeSucceeds", "consolidation": "ConsolidationSucceeds"}
    for schedule in schedules(backend):
        groups.setdefault(names.get(schedule.key, "ComparisonsSucceed"), []).append(schedule)
    before = {condition.get("type"): condition for condition in old}
    found = []
    for kind, members in groups.items():
        outcomes = {s: outcome(live.get(("CronJob", s.name(backend))), _recorded(s, status)) for s in members}
        finding = _finding(backend, kind, outcomes)
        previous = before.get(kind)
        under_way = any(how in ("running", "again") for how in outcomes.values())
        if under_way and previous is not None and previous["status"] == "False":
            finding = Finding(kind, "False", previous["reason"], previous.get("message", ""))
        found.append(finding)
    return found + shadow(backend)


def _recorded(schedule: Schedule, status: Mapping[str, Any] | None) -> str:
    """When the service last saw a comparison of this schedule completed; empty if never, or if it is none."""
    kind, _, target = schedule.key.partition("-")
    entry = ((status or {}).get("targets") or {}).get(target) or {}
    run = entry.get(RUNS.get(kind, "")) or {}
    return str(run.get("finishedAt") or "") if run.get("state") == "completed" else ""


def _finding(backend: Backend, kind: str, outcomes: Mapping[Schedule, Outcome]) -> Finding:
    for schedule, how in outcomes.items():
        if how == "failed":
            labels = f"{BACKEND_LABEL}={backend.name},{COMPONENT_LABEL}={schedule.suffix}"
            text = (
                f"The last run of CronJob {schedule.name(backend)} failed: read `kubectl logs -l {labels} --tail=50`; "
                "the next run tries again"
            )
            return Finding(kind, "False", "RunFailed", text)
    if any(how in ("succeeded", "again") for how in outcomes.values()):
        return Finding(kind, "True", "RunSucceeded", "The last scheduled runs ended well")
    return Finding(kind, "Unknown", "NotRunYet", "The first scheduled run is still to come")


def shadow(backend: Backend) -> list[Finding]:
    """The condition Shadow, while some target is in that mode."""
    targets = [target for target in backend.targets() if projection_of(backend, target).mode == "Shadow"]
    if not targets:
        return []
    text = (
        f"{' and '.join(targets)}: changes are compared and counted, nothing is written or purged; when the comparison "
        "shows what you expect, set mode: Live"
    )
    return [Finding("Shadow", "True", "WritesNothing", text)]


def schedule_statuses(backend: Backend, live: Live) -> list[dict[str, Any]]:
    """`status.schedules`: when each CronJob was last started and last ended well."""
    result = []
    for schedule in schedules(backend):
        status = (live.get(("CronJob", schedule.name(backend))) or {}).get("status", {})
        times = {"lastScheduled": status.get("lastScheduleTime"), "lastSucceeded": status.get("lastSuccessfulTime")}
        result.append({"name": schedule.key, **{name: time for name, time in times.items() if time}})
    return sorted(result, key=lambda entry: entry["name"])
