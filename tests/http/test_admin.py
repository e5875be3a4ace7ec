"""The admin API: who may see and change what, and that it tells what PostgreSQL knows."""

from __future__ import annotations

import pytest

from memplane.schema.database import Database
from memplane.settings import Settings
from tests.http.serving import client
from tests.http.world import BOTH, STATUS_KEY, Keys, node, service, settled

_DEAD = """
INSERT INTO {schema}.memory_outbox
    (event_id, aggregate_id, user_id, tenant, aggregate_version, event_type, target, payload, status, attempts,
     last_error)
VALUES (gen_random_uuid(), $1, 'u', $2, 1, 'upsert_memory_vector', 'milvus', '{}', 'dead', 10, 'it was refused')
RETURNING id
"""


async def dead_event(database: Database, memory_id: int, tenant: str) -> int:
    async with database.acquire() as connection:
        return int(await connection.fetchval(database.sql(_DEAD), memory_id, tenant))


ROUTES = [
    ("GET", "/v1/admin/outbox", {"admin", "platform", "other"}),
    ("GET", "/v1/admin/outbox/1", {"admin", "platform", "other"}),
    ("POST", "/v1/admin/outbox/replay", {"admin", "platform", "other"}),
    ("POST", "/v1/admin/outbox/discard", {"admin", "platform", "other"}),
    ("GET", "/v1/admin/memories/1", {"admin", "platform", "other"}),
    ("GET", "/v1/admin/reconciliation", {"platform"}),
    ("GET", "/v1/admin/drift", {"platform"}),
    ("GET", "/v1/admin/generations", {"platform"}),
    ("GET", "/v1/admin/status", {"platform", "status"}),
]


async def test_who_may_ask_what(settings: Settings, keys: Keys) -> None:
    bearers = {**keys.by_name, "status": STATUS_KEY}
    async with service(settings) as (url, _):
        for method, path, allowed in ROUTES:
            body = {"ids": [1]} if method == "POST" else None
            async with client(url) as http:
                assert (await http.request(method, path, json=body)).status_code == 401
            for name, key in bearers.items():
                async with client(url, key, "ann") as http:
                    status = (await http.request(method, path, json=body)).status_code
                expected = {200, 404} if name in allowed else {401} if name == "status" else {403}
                assert status in expected, f"{name} {method} {path}: {status}"


async def test_a_tenant_sees_and_changes_its_own_events(settings: Settings, keys: Keys, database: Database) -> None:
    mine = await dead_event(database, 1001, "acme")
    theirs = await dead_event(database, 1002, "other")
    async with service(settings) as (url, _):
        async with client(url, keys["admin"]) as http:
            listed = (await http.get("/v1/admin/outbox", params={"status": "dead"})).json()
            assert [event["id"] for event in listed["events"]] == [mine]
            assert listed["events"][0]["lastError"] == "it was refused"
            assert (await http.get(f"/v1/admin/outbox/{theirs}")).status_code == 404
            assert (await http.get("/v1/admin/memories/1002")).status_code == 404
            for verb in ("replay", "discard"):
                changed = await http.post(f"/v1/admin/outbox/{verb}", json={"ids": [theirs]})
                assert changed.json() == {"ids": []}
            assert (await http.post("/v1/admin/outbox/replay", json={"ids": [mine, theirs]})).json() == {"ids": [mine]}
            shown = (await http.get(f"/v1/admin/outbox/{mine}")).json()
            assert (shown["status"], shown["attempts"]) == ("pending", 0)
        async with client(url, keys["platform"]) as http:
            everything = (await http.get("/v1/admin/outbox")).json()["events"]
            assert {event["id"] for event in everything} == {mine, theirs}
            assert (await http.post("/v1/admin/outbox/discard", json={"ids": [theirs]})).json() == {"ids": [theirs]}
            gone = (await http.get(f"/v1/admin/outbox/{theirs}")).json()
            assert gone["status"] == "processed"
            assert "discarded" in gone["lastError"]


async def test_pages_of_events(settings: Settings, keys: Keys, database: Database) -> None:
    made = [await dead_event(database, 2000 + number, "acme") for number in range(5)]
    seen: list[int] = []
    async with service(settings) as (url, _), client(url, keys["admin"]) as http:
        before = None
        while True:
            parameters = {"limit": 2} | ({"before": before} if before else {})
            page = (await http.get("/v1/admin/outbox", params=parameters)).json()
            seen += [event["id"] for event in page["events"]]
            before = page["nextBefore"]
            if before is None:
                break
    assert seen == sorted(made, reverse=True)


async def test_state_and_history_of_one_memory(settings: Settings, keys: Keys) -> None:
    async with service(settings, workers=BOTH) as (url, _), client(url, keys["any"], "ann") as http:
        target = (await node(http, "WRITE", {"memories": [{"content": "b"}]}))[0]["id"]
        metadata = {"relations": [{"type": "knows", "target": target}], "importance": 0.5}
        source = (await node(http, "WRITE", {"memories": [{"content": "secret body", "metadata": metadata}]}))[0]["id"]
        await node(http, "UPDATE", {"memories": [{"id": source, "content": "another body"}]})
        await settled(url)
        async with client(url, keys["admin"]) as admin:
            answer = await admin.get(f"/v1/admin/memories/{source}")
            state = answer.json()
        await node(http, "DELETE", {"ids": [source]})
        await settled(url)
        async with client(url, keys["admin"]) as admin:
            after = (await admin.get(f"/v1/admin/memories/{source}")).json()
    assert "body" not in answer.text
    assert state["memory"]["version"] == 2
    assert [(edge["type"], edge["target_id"]) for edge in state["edges"]] == [("knows", target)]
    projected = {(one["target"], one["family"]): one["projectedVersion"] for one in state["projections"]}
    assert projected[("milvus", "node")] == 2
    assert projected[("neo4j", "node")] == 2
    assert all(one["unfinished"] == 0 and one["dead"] == 0 for one in state["projections"])
    assert [event["version"] for event in state["history"]] == sorted(
        (event["version"] for event in state["history"]), reverse=True
    )
    assert after["memory"]["deleted_at"] is not None
    assert after["history"][0]["eventType"] in {
        "delete_memory_graph_node", "delete_memory_vector", "delete_memory_graph_edges", "invalidate_ltm_cache",
    }  # fmt: skip


async def test_reconciliation_drift_and_status(settings: Settings, keys: Keys, database: Database) -> None:
    insert = database.sql(
        "INSERT INTO {schema}.reconciliation_run "
        "(target, kind, mode, state, scanned, mismatches, repaired, finished_at) VALUES "
        "('milvus', $1, 'audit', $2, 10, $3::text::jsonb, '{}', now())"
    )
    async with database.acquire() as connection:
        await connection.execute(insert, "full", "completed", '{"missing": 2, "orphan": 1}')
        await connection.execute(insert, "full", "failed", "{}")
        await connection.execute(insert, "incremental", "completed", "{}")
    await dead_event(database, 3001, "acme")
    async with service(settings) as (url, _), client(url, keys["platform"]) as http:
        runs = (await http.get("/v1/admin/reconciliation", params={"target": "milvus"})).json()["runs"]
        assert [run["kind"] for run in runs] == ["incremental", "full", "full"]
        finding = database.sql("INSERT INTO {schema}.reconciliation_finding VALUES ($1, $2, 'orphan', 'version 3')")
        async with database.acquire() as connection:
            for memory_id in (5, 9):
                await connection.execute(finding, runs[1]["id"], memory_id)
        detail = (await http.get(f"/v1/admin/reconciliation/{runs[1]['id']}", params={"after": 5})).json()
        assert (detail["state"], detail["resumed"], detail["samples"]) == ("failed", 0, [])
        assert detail["findings"] == [{"memoryId": "9", "type": "orphan", "detail": "version 3"}]
        assert (await http.get("/v1/admin/reconciliation/999999")).status_code == 404
        drift = (await http.get("/v1/admin/drift")).json()["targets"]
        assert drift["milvus"]["mismatches"] == {"missing": 2, "orphan": 1}
        assert drift["neo4j"] is None
        status = (await http.get("/v1/admin/status")).json()
    assert status["ready"] is True
    assert status["schemaVersion"] >= 1
    assert len(status["backendId"]) == 36
    milvus = status["targets"]["milvus"]
    assert milvus.pop("lastFullRun")["scanned"] == 10
    assert milvus.pop("lastIncrementalRun")["mismatches"] == {}
    assert milvus == {
        "enabled": True,
        "mode": "Live",
        "reachable": True,
        "detail": "",
        "backlog": 0,
        "lagSeconds": 0.0,
        "dead": 1,
        "drift": 3,
    }
    assert status["targets"]["neo4j"]["drift"] is None


@pytest.mark.parametrize(
    "query",
    [
        "target=redis",
        "status=lost",
        "limit=0",
        "limit=1001",
        "limit=x",
        "before=0",
        "before=9223372036854775808",
        "memoryId=-1",
    ],
)
async def test_wrong_parameters_are_400(settings: Settings, keys: Keys, query: str) -> None:
    async with service(settings) as (url, _), client(url, keys["admin"]) as http:
        answer = await http.get(f"/v1/admin/outbox?{query}")
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["code"] == "INVALID_REQUEST"
        bodies: tuple[object, ...] = (
            {},
            {"ids": []},
            {"ids": ["x"]},
            {"ids": [1] * 1001},
            {"ids": [1], "all": True},
            [],
        )
        for body in bodies:
            assert (await http.post("/v1/admin/outbox/replay", json=body)).status_code == 400
        assert (await http.get("/v1/admin/memories/9223372036854775808")).status_code == 400
        assert (await http.get("/v1/admin/outbox/abc")).status_code == 400
