"""What a backend does by the clock: the CronJobs, and what is said of their runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from memplane.settings import load_settings
from memplane_operator.desired.config import settings
from memplane_operator.desired.context import Manifest
from memplane_operator.desired.schedules import cron_jobs, schedules
from memplane_operator.scheduled import outcome, schedule_findings, schedule_statuses
from tests.operator.objects import BOTH, EVERYTHING, MILVUS, MINIMAL, NEO4J, backend, facts

EARLY, DUE, LATE = "2026-05-01T03:16:00Z", "2026-05-01T03:17:00Z", "2026-05-01T03:18:09Z"
PURGED: dict[str, Any] = {**BOTH, "reconciler": {"purge": {}}}


def job(*, scheduled: str = "", succeeded: str = "", active: bool = False) -> Manifest:
    status: dict[str, Any] = {"active": [{"name": "j"}]} if active else {}
    if scheduled:
        status["lastScheduleTime"] = scheduled
    if succeeded:
        status["lastSuccessfulTime"] = succeeded
    return {"kind": "CronJob", "status": status}


@pytest.mark.parametrize(
    ("cron_job", "finished_at", "expected"),
    [
        (None, "", "never"),
        (job(), "", "never"),
        (job(scheduled=DUE, active=True), "", "running"),
        (job(scheduled=DUE, succeeded=EARLY, active=True), "", "again"),
        (job(scheduled=DUE, active=True), EARLY, "again"),
        (job(scheduled=DUE, succeeded=LATE), "", "succeeded"),
        (job(scheduled=DUE), "", "failed"),
        (job(scheduled=DUE, succeeded=EARLY), "", "failed"),
        (job(scheduled=DUE, succeeded=EARLY), EARLY, "failed"),
        (job(scheduled=DUE, succeeded=EARLY), LATE, "succeeded"),
    ],
)
def test_how_the_last_run_went(cron_job: Manifest | None, finished_at: str, expected: str) -> None:
    assert outcome(cron_job, finished_at) == expected


def conditions(
    spec: dict[str, Any],
    live: dict[str, Manifest],
    status: dict[str, Any] | None = None,
    old: list[dict[str, Any]] | None = None,
) -> dict[str, tuple[str, str]]:
    found = schedule_findings(
        backend(spec), {("CronJob", name): item for name, item in live.items()}, status, old or []
    )
    return {finding.type: (finding.status, finding.reason) for finding in found}


def test_only_what_is_declared_has_a_condition() -> None:
    assert conditions(MINIMAL, {}) == {}
    assert conditions(BOTH, {}) == {"ComparisonsSucceed": ("Unknown", "NotRunYet")}
    both = {**PURGED, "consolidation": {"rules": ["exact"]}}
    assert set(conditions(both, {})) == {"ComparisonsSucceed", "PurgeSucceeds", "ConsolidationSucceeds"}


def test_one_failed_run_fails_the_condition_and_names_its_log() -> None:
    live = {
        ("CronJob", "memory-reconcile-milvus"): job(scheduled=DUE, succeeded=LATE),
        ("CronJob", "memory-incremental-neo4j"): job(scheduled=DUE),
        ("CronJob", "memory-purge"): job(scheduled=DUE, succeeded=LATE),
    }
    found = {finding.type: finding for finding in schedule_findings(backend(PURGED), live, None, [])}
    assert found["ComparisonsSucceed"].status == "False"
    assert "memplane.dev/component=incremental-neo4j" in found["ComparisonsSucceed"].message
    assert found["PurgeSucceeds"].status == "True"


def test_an_audit_that_found_differences_did_its_work() -> None:
    live = {"memory-reconcile-milvus": job(scheduled=DUE)}
    status = {"targets": {"milvus": {"lastFullRun": {"state": "completed", "finishedAt": LATE}}}}
    assert conditions(BOTH, live, status)["ComparisonsSucceed"] == ("True", "RunSucceeded")
    status["targets"]["milvus"]["lastFullRun"]["state"] = "failed"
    assert conditions(BOTH, live, status)["ComparisonsSucceed"] == ("False", "RunFailed")


def test_a_run_under_way_leaves_a_failure_of_the_run_before() -> None:
    live = {"memory-purge": job(scheduled=DUE, succeeded=EARLY, active=True)}
    old = [{"type": "PurgeSucceeds", "status": "False", "reason": "RunFailed", "message": "m"}]
    assert conditions(PURGED, live, old=old)["PurgeSucceeds"] == ("False", "RunFailed")
    assert conditions(PURGED, live)["PurgeSucceeds"] == ("True", "RunSucceeded")
    first = {"memory-purge": job(scheduled=DUE, active=True)}
    assert conditions(PURGED, first)["PurgeSucceeds"] == ("Unknown", "NotRunYet")


def test_a_target_in_shadow_mode_is_said_and_only_audited() -> None:
    spec = {**PURGED, "projections": {"milvus": {**MILVUS, "mode": "Shadow"}, "neo4j": NEO4J}}
    assert conditions(spec, {})["Shadow"] == ("True", "WritesNothing")
    assert "Shadow" not in conditions(PURGED, {})
    commands = {schedule.key: schedule.args for schedule in schedules(backend(spec))}
    assert commands["full-milvus"][-1] == commands["incremental-milvus"][-1] == "--audit"
    assert commands["full-neo4j"][-1] == commands["incremental-neo4j"][-1] == "--repair"
    (purge,) = (schedule for schedule in schedules(backend(spec)) if schedule.key == "purge")
    assert purge.env["MEMPLANE_OUTBOX__MODE"] == "Shadow", "purge keeps everything then"


def test_an_empty_schedule_turns_incremental_comparison_off() -> None:
    spec = {**BOTH, "reconciler": {"incrementalSchedule": ""}}
    assert [schedule.key for schedule in schedules(backend(spec))] == ["full-milvus", "full-neo4j"]


def test_the_status_tells_when_each_was_last_run() -> None:
    live = {("CronJob", "memory-purge"): job(scheduled=DUE, succeeded=EARLY)}
    entries = {entry["name"]: entry for entry in schedule_statuses(backend(PURGED), live)}
    assert list(entries) == sorted(entries)
    assert entries["purge"] == {"name": "purge", "lastScheduled": DUE, "lastSucceeded": EARLY}
    assert entries["full-milvus"] == {"name": "full-milvus"}


@pytest.mark.parametrize("spec", [PURGED, EVERYTHING])
def test_every_job_has_settings_that_its_command_accepts(
    spec: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = tmp_path / "memplane.yaml"
    document.write_text(yaml.safe_dump(settings(backend(spec))))
    for cron_job in cron_jobs(backend(spec), facts()):
        (container,) = cron_job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
        with monkeypatch.context() as environment:
            for entry in container["env"]:
                environment.setenv(entry["name"], entry["value"])
            loaded = load_settings(document)
        if cron_job["metadata"]["name"] == "memory-purge":
            assert loaded.purge.retention_seconds == 30 * 86400
        if cron_job["metadata"]["name"] == "memory-consolidation":
            assert loaded.consolidation.rules == ("exact", "near", "policy")
            assert loaded.consolidation.policy_options == {"prefer": "newest"}


def test_names_of_cron_jobs_fit_the_longest_name_of_a_backend() -> None:
    longest = "m" * 32
    names = [schedule.name(backend(PURGED, name=longest)) for schedule in schedules(backend(PURGED))]
    assert max(map(len, names)) <= 52


@pytest.mark.parametrize("spec", [PURGED, EVERYTHING])
def test_every_job_runs_a_command_that_exists(spec: dict[str, Any]) -> None:
    from memplane.cli.app import app

    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    for schedule in schedules(backend(spec)):
        outer = group.make_context("memplane", [*schedule.args])
        name, command, rest = group.resolve_command(outer, [*outer._protected_args, *outer.args])
        assert command is not None
        command.make_context(name, rest, parent=outer)
