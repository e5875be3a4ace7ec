"""What runs by the clock: comparisons, purge and consolidation, and their results in the backend's status."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.conftest import Space
from e2e.waiting import eventually

pytestmark = pytest.mark.full
EVERY_MINUTE = "*/1 * * * *"
MINUTES = 480.0
"""Time for a few runs: a run starts at a full minute, and two at once share a small machine."""


def target(space: Space, name: str) -> dict[str, Any]:
    status = (space.kube.backend(space.name, "memory") or {}).get("status", {})
    return next((entry for entry in status.get("targets", []) if entry["name"] == name), {})


def holds(space: Space, condition: str) -> bool:
    found = space.kube.condition(space.name, "memory", condition)
    assert found.get("status") != "False", found
    return found.get("status") == "True"


def test_scheduled_comparisons_run_and_are_reported(space: Space) -> None:
    kube = space.kube
    reconciler = {"fullSchedule": EVERY_MINUTE, "incrementalSchedule": EVERY_MINUTE, "mode": "Repair"}
    kube.apply_backend(space.name, "memory", space.spec(reconciler=reconciler))
    space.ready()
    space.memory().write("compared by the scheduled run")
    cron = kube.plain(kube.batch.read_namespaced_cron_job("memory-reconcile-milvus", space.name))
    assert cron["spec"]["concurrencyPolicy"] == "Forbid"
    assert cron["spec"]["timeZone"] == "Etc/UTC"
    for name in ("milvus", "neo4j"):
        for run in ("lastFullRun", "lastIncrementalRun"):
            eventually(
                f"{run} of {name} is in the status",
                lambda name=name, run=run: target(space, name).get(run, {}).get("state") == "completed",  # type: ignore[misc]
                timeout=MINUTES,
            )
    eventually("the comparisons succeed", lambda: holds(space, "ComparisonsSucceed"), timeout=MINUTES)
    schedules = (kube.backend(space.name, "memory") or {})["status"]["schedules"]
    assert {entry["name"] for entry in schedules} == {
        "full-milvus", "full-neo4j", "incremental-milvus", "incremental-neo4j",
    }  # fmt: skip
    assert all("lastScheduled" in entry for entry in schedules)


def test_purge_and_consolidation_run_by_the_clock(space: Space) -> None:
    spec = space.spec(
        projections={},
        reconciler={"purge": {"schedule": EVERY_MINUTE}},
        consolidation={"schedule": EVERY_MINUTE, "rules": ["exact"]},
    )
    space.kube.apply_backend(space.name, "memory", spec)
    space.ready()
    memory = space.memory()
    twins = memory.write("Ada lives in Porto", "Ada lives in Porto")
    eventually("the purge succeeds", lambda: holds(space, "PurgeSucceeds"), timeout=MINUTES)
    eventually("the consolidation succeeds", lambda: holds(space, "ConsolidationSucceeds"), timeout=MINUTES)
    eventually(
        "one of two equal memories is left",
        lambda: len(memory.node("MEMORY.GET", {"ids": twins})) == 1,
        timeout=MINUTES,
    )


def test_a_target_goes_from_shadow_to_live(space: Space) -> None:
    """Shadow counts what it would write and an audit tells what is missing; Live repairs it."""
    spec = space.spec(reconciler={"fullSchedule": EVERY_MINUTE, "incrementalSchedule": "", "mode": "Repair"})
    spec["projections"] = {"milvus": {**spec["projections"]["milvus"], "mode": "Shadow"}}
    space.kube.apply_backend(space.name, "memory", spec)
    space.ready()
    assert space.kube.condition(space.name, "memory", "Shadow")["status"] == "True"
    space.memory().write("written to the truth alone", "and so is this")

    def missing() -> bool:
        drift = target(space, "milvus").get("lastFullRun", {}).get("drift", [])
        return {entry["kind"]: entry["count"] for entry in drift} == {"missing": 2}

    eventually("the audit counts what is missing", missing, timeout=MINUTES)
    assert target(space, "milvus")["mode"] == "Shadow"
    eventually("an audit that found differences did its work", lambda: holds(space, "ComparisonsSucceed"), timeout=120)

    spec["projections"]["milvus"]["mode"] = "Live"
    space.kube.apply_backend(space.name, "memory", spec)
    eventually(
        "nothing is missing any more",
        lambda: target(space, "milvus")["mode"] == "Live" and target(space, "milvus")["drift"] == 0,
        timeout=MINUTES,
    )
    space.converged(timeout=MINUTES)
    assert space.kube.condition(space.name, "memory", "Shadow") == {}
    assert sum(space.audit("milvus")["mismatches"].values()) == 0
