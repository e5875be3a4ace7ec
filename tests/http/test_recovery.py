"""Recovery tasks over HTTP: who sees which, who decides, and what the metrics say."""

from __future__ import annotations

from typing import Any

from memplane.contracts import Scope
from memplane.recovery.documents import new_job
from memplane.recovery.postgres_jobs import PostgresJobs
from memplane.schema.database import Database
from memplane.settings import Settings
from tests.http.serving import client
from tests.http.world import Keys, service

ORDER = {"sku": "SKU-731", "quantity": 2, "address": "Dock-North"}


async def stored(database: Database, tenant: str, user: str, name: str, **fields: Any) -> None:
    job = {**new_job(name, "hash", requires_approval=True), "order": ORDER, **fields}
    await PostgresJobs.of(database, Scope(tenant, user)).insert(job)


async def test_a_tenant_sees_its_own_tasks(settings: Settings, keys: Keys, database: Database) -> None:
    await stored(database, "acme", "ann", "mine", stage="paused")
    await stored(database, "other", "ann", "theirs", stage="paused")
    async with service(settings) as (url, _):
        async with client(url) as http:
            assert (await http.get("/v1/recovery/jobs")).status_code == 401
        async with client(url, keys["admin"]) as http:
            listed = (await http.get("/v1/recovery/jobs")).json()
            assert [job["id"] for job in listed["jobs"]] == ["mine"]
            assert (await http.get("/v1/recovery/jobs", params={"stage": "failed"})).json()["jobs"] == []
            shown = (await http.get("/v1/recovery/jobs/mine")).json()
            assert (shown["order"], shown["stage"]) == (ORDER, "paused")
            history = (await http.get("/v1/recovery/jobs/mine/history")).json()
            assert [event["kind"] for event in history["events"]] == ["created"]
            for path in ("theirs", "theirs/history", "nothing"):
                assert (await http.get(f"/v1/recovery/jobs/{path}")).status_code == 404
            decided = await http.post("/v1/recovery/jobs/theirs/decision", json={"decision": "approve"})
            assert decided.status_code == 404
        async with client(url, keys["platform"]) as http:
            assert (await http.get("/v1/recovery/jobs")).status_code == 403


async def test_a_decision_is_made_once_under_the_authenticated_name(
    settings: Settings, keys: Keys, database: Database
) -> None:
    await stored(database, "acme", "ann", "mine", stage="paused")
    async with service(settings) as (url, _), client(url, keys["admin"]) as http:
        path = "/v1/recovery/jobs/mine/decision"
        forged = await http.post(path, json={"decision": "approve", "actor": "somebody else"})
        assert forged.status_code == 400
        assert (await http.post(path, json={"decision": "maybe"})).status_code == 400
        job = (await http.post(path, json={"decision": "approve"})).json()
        assert job["stage"] == "approved"
        assert job["approval"]["actor"].startswith("acme/")
        assert (await http.post(path, json={"decision": "reject"})).status_code == 409


async def test_metrics_count_tasks_by_stage(settings: Settings, keys: Keys, database: Database) -> None:
    await stored(database, "acme", "ann", "one", stage="uncertain")
    async with database.acquire() as connection:
        await connection.execute(
            database.sql("UPDATE {schema}.recovery_job SET changed_at = now() - interval '1 hour'")
        )
    async with service(settings) as (url, _), client(url, keys["admin"]) as http:
        text = (await http.get("/metrics")).text
    assert 'memplane_recovery_jobs{stage="uncertain"} 1.0' in text
    assert 'memplane_recovery_jobs{stage="paused"} 0.0' in text
    (line,) = [
        one for one in text.splitlines() if one.startswith('memplane_recovery_oldest_seconds{stage="uncertain"}')
    ]
    assert 3600 <= float(line.split()[1]) < 3700
