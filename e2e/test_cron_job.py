"""The scheduled comparison runs, and its result stands in the backend's status."""

from __future__ import annotations

import pytest

from e2e.conftest import Space
from e2e.waiting import eventually

pytestmark = pytest.mark.full


def test_a_scheduled_run_repairs_and_is_reported(space: Space) -> None:
    kube = space.kube
    kube.apply_backend(space.name, "memory", space.spec(reconciler={"fullSchedule": "*/1 * * * *", "mode": "Repair"}))
    space.ready()
    space.memory().write("compared by the scheduled run")
    cron = kube.plain(kube.batch.read_namespaced_cron_job("memory-reconcile-milvus", space.name))
    assert cron["spec"]["concurrencyPolicy"] == "Forbid"
    assert cron["spec"]["timeZone"] == "Etc/UTC"

    def reported() -> bool:
        status = (kube.backend(space.name, "memory") or {})["status"]
        runs = {target["name"]: target.get("lastFullRun") for target in status["targets"]}
        return all(run is not None and run["state"] == "completed" for run in runs.values())

    eventually("the runs are in the status", reported, timeout=240)
