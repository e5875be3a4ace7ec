"""The service on PostgreSQL, Milvus and Neo4j: what a caller sees, whom it sees, and what operators are told."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from memplane.outbox.events import Target
from memplane.schema.database import Database
from memplane.settings import Settings
from tests.http.serving import client
from tests.http.world import BOTH, STATUS_KEY, Keys, eventually, node, service, settled

SEED_METRICS = {
    "memory_outbox_pending_total": {"target", "event_type"},
    "memory_outbox_oldest_pending_seconds": {"target"},
    "memory_outbox_processing_total": set(),
    "memory_outbox_dead_total": {"target", "event_type"},
    "memory_outbox_retry_total": {"target"},
    "memory_projection_latency_seconds": {"target"},
    "memory_reconciliation_mismatch_total": {"target", "type"},
    "memory_reconciliation_repaired_total": {"target", "type"},
    "memory_cache_reload_total": {"reason"},
    "memory_projection_consecutive_failures": {"target"},
    "memory_projection_hash_conflict_total": {"target"},
    "memory_cache_version_lag_seconds": set(),
    "memory_search_degraded_total": {"target"},
}


async def test_write_search_update_delete(settings: Settings, keys: Keys) -> None:
    async with service(settings, workers=BOTH) as (url, _), client(url, keys["ann"]) as http:
        written = await node(
            http,
            "WRITE",
            {"memories": [{"key": "drink", "content": "she drinks green tea"}, {"content": "the car is blue"}]},
        )
        tea = written[0]["id"]
        assert [item["version"] for item in written] == [1, 1]
        hits = await node(http, "SEARCH", {"query": "green tea", "limit": 1})
        assert [hit["memory"]["id"] for hit in hits] == [tea], "found before it is projected, too"
        await settled(url)
        vector = await node(http, "SEARCH", {"query": "green tea", "strategy": "vector", "limit": 1})
        assert vector[0]["memory"] == written[0]
        await node(http, "UPDATE", {"memories": [{"id": tea, "content": "she drinks coffee", "expectedVersion": 1}]})
        await settled(url)
        found = await node(http, "SEARCH", {"query": "coffee", "strategy": "vector", "limit": 1})
        assert found[0]["memory"]["content"] == "she drinks coffee"
        assert await node(http, "GET", {"keys": ["drink"]}) == [found[0]["memory"]]
        assert await node(http, "DELETE", {"ids": [tea]}) == {"deleted": [tea]}
        assert tea not in [hit["memory"]["id"] for hit in await node(http, "SEARCH", {"query": "coffee"})]
        await settled(url)
        page = await node(http, "QUERY", {})
        assert [item["content"] for item in page["items"]] == ["the car is blue"]


async def test_scopes_do_not_leak(settings: Settings, keys: Keys) -> None:
    async with service(settings) as (url, _), client(url, keys["ann"]) as ann:
        mine = (await node(ann, "WRITE", {"memories": [{"key": "k", "content": "mine alone"}]}))[0]["id"]
        for key, user in [("any", "bob"), ("other", "ann")]:
            async with client(url, keys[key], user) as http:
                assert await node(http, "GET", {"ids": [mine], "keys": ["k"]}) == []
                assert (await node(http, "QUERY", {}))["items"] == []
                assert await node(http, "SEARCH", {"query": "mine alone"}) == []
                assert await node(http, "DELETE", {"ids": [mine]}) == {"deleted": []}
                for document in [{"filter": {"tenant": "acme"}}, {"filter": {"user_id": "ann"}}]:
                    assert (await node(http, "QUERY", document))["items"] == []
                update = await http.post(
                    "/v1/nodes/MEMORY.UPDATE", json={"memories": [{"id": mine, "content": "taken"}]}
                )
                assert update.json()["error"]["code"] == "NOT_FOUND"
        async with client(url, keys["any"], "ann") as http:
            assert (await node(http, "GET", {"ids": [mine]}))[0]["content"] == "mine alone"


async def test_metadata_cannot_change_a_scope(settings: Settings, keys: Keys) -> None:
    metadata = {"tenant": "other", "user_id": "bob", "id": "1", "version": 99}
    async with service(settings) as (url, _):
        async with client(url, keys["ann"]) as ann:
            written = await node(ann, "WRITE", {"memories": [{"content": 1, "metadata": metadata}]})
            assert written[0]["metadata"] == metadata
            assert written[0]["version"] == 1
        async with client(url, keys["other"], "bob") as http:
            assert (await node(http, "QUERY", {}))["items"] == []


@pytest.mark.parametrize(
    ("name", "document", "code"),
    [
        ("GET", {}, "INVALID_INPUT"),
        ("GET", [], "INVALID_INPUT"),
        ("GET", None, "INVALID_INPUT"),
        ("WRITE", {"memories": [{"content": "x", "key": "k" * 513}]}, "INVALID_INPUT"),
        ("WRITE", {"memories": [{"content": "x" * (2**20 + 1)}]}, "INVALID_INPUT"),
        ("WRITE", {"memories": [{"content": "x", "metadata": {"a": "y" * 70_000}}]}, "INVALID_INPUT"),
        ("WRITE", {"memories": [{"content": "a\x00b"}]}, "INVALID_INPUT"),
        ("WRITE", {"memories": [{"content": "a\ud800b"}]}, "INVALID_INPUT"),
        ("WRITE", {"memories": [{"content": "x", "metadata": {"importance": 2}}]}, "INVALID_INPUT"),
        ("WRITE", {"memories": [{"content": "x", "key": "k"}, {"content": "y", "key": "k"}]}, "CONFLICT"),
        ("QUERY", {"limit": 0}, "INVALID_INPUT"),
        ("QUERY", {"filter": {"$foo": 1}}, "UNSUPPORTED_FILTER"),
        ("QUERY", {"orderBy": [{"field": "content"}]}, "UNSUPPORTED_ORDER"),
        ("QUERY", {"cursor": "nonsense"}, "INVALID_CURSOR"),
        ("SEARCH", {"query": "x", "strategy": "bm25"}, "UNSUPPORTED_STRATEGY"),
        ("SEARCH", {"query": {"vector": [1, 2]}}, "INVALID_INPUT"),
        ("UPDATE", {"memories": [{"id": "007", "content": 1}]}, "NOT_FOUND"),
        ("UPDATE", {"memories": [{"id": str(2**63), "content": 1}]}, "NOT_FOUND"),
        ("RETRIEVE", {}, "UNKNOWN_NODE"),
    ],
)
async def test_bad_input_is_a_failed_result(
    bad_input_service: httpx.AsyncClient, name: str, document: object, code: str
) -> None:
    headers = {"Content-Type": "application/json"}
    body = json.dumps(document).encode()
    response = await bad_input_service.post(f"/v1/nodes/MEMORY.{name}", content=body, headers=headers)
    assert response.status_code == 200
    assert response.json()["error"]["code"] == code, response.text
    assert response.json()["node"] == f"MEMORY.{name}"


@pytest.fixture
async def bad_input_service(settings: Settings, keys: Keys):  # type: ignore[no-untyped-def]
    async with service(settings) as (url, _), client(url, keys["ann"]) as http:
        yield http


async def test_expired_memories_disappear_everywhere(settings: Settings, keys: Keys) -> None:
    async with service(settings, workers=BOTH) as (url, process), client(url, keys["ann"]) as http:
        until = (datetime.now(UTC) + timedelta(seconds=1.5)).isoformat()
        written = await node(http, "WRITE", {"memories": [{"content": "short", "metadata": {"expires_at": until}}]})
        identifier = written[0]["id"]
        assert await node(http, "GET", {"ids": [identifier]}) == written

        async def buried() -> bool:
            async with process.connections.database.acquire() as connection:
                return bool(
                    await connection.fetchval(
                        process.connections.database.sql(
                            "SELECT deleted_at IS NOT NULL FROM {schema}.long_term_memory WHERE id = $1"
                        ),
                        int(identifier),
                    )
                )

        await eventually(buried)
        await settled(url)
        assert await node(http, "GET", {"ids": [identifier]}) == []
        async with client(url, keys["admin"]) as admin:
            state = (await admin.get(f"/v1/admin/memories/{identifier}")).json()
    assert {one["eventType"] for one in state["history"]} >= {"delete_memory_vector", "delete_memory_graph_node"}


async def test_metrics_have_the_names_and_labels_of_the_seed(settings: Settings, keys: Keys) -> None:
    async with service(settings, workers=BOTH) as (url, process), client(url, keys["ann"]) as http:
        async with process.connections.database.acquire() as connection:
            sql = process.connections.database.sql
            for status, memory in (("dead", 900), ("pending", 901)):
                await connection.execute(
                    sql(
                        "INSERT INTO {schema}.memory_outbox (event_id, aggregate_id, user_id, tenant, "
                        "aggregate_version, event_type, target, payload, status, available_at) VALUES "
                        "(gen_random_uuid(), $1, 'u', 't', 1, 'upsert_memory_vector', 'milvus', '{}', $2, "
                        "now() + interval '1 hour')"
                    ),
                    memory,
                    status,
                )
            await connection.execute(
                sql(
                    "INSERT INTO {schema}.reconciliation_run (target, kind, mode, state, mismatches, repaired) VALUES "
                    """('milvus', 'full', 'repair', 'completed', '{"missing": 2}', '{"missing": 2}')"""
                )
            )
        await node(http, "WRITE", {"memories": [{"content": "x"}]})
        await node(http, "SEARCH", {"query": "x"})
        process._metrics.retries.labels("milvus").inc()
        process._metrics.hash_conflicts.labels("milvus").inc()
        process._metrics.search_degraded.labels("neo4j").inc()
        await asyncio.sleep(0.5)
        text = (await http.get("/metrics")).text
    for name, labels in SEED_METRICS.items():
        samples = re.findall(rf"^{name}(?:_count)?(\{{[^}}]*\}})? ", text, re.MULTILINE)
        assert samples, f"{name} is missing"
        for sample in samples:
            assert set(re.findall(r'(\w+)="', sample)) == labels, f"{name}{sample}"
    assert 'memory_outbox_dead_total{event_type="upsert_memory_vector",target="milvus"} 1.0' in text
    assert re.search(r'memory_outbox_pending_total\{event_type="upsert_memory_vector",target="milvus"\} [12]', text)
    assert 'memory_reconciliation_mismatch_total{target="milvus",type="missing"} 2.0' in text


async def test_metrics_may_want_a_key(settings: Settings, keys: Keys) -> None:
    closed = settings.model_copy(update={"auth": settings.auth.model_copy(update={"metrics": "key"})})
    async with service(closed) as (url, _):
        for key, status in [(None, 401), (keys["ann"], 403), (keys["platform"], 200), (STATUS_KEY, 200)]:
            async with client(url, key) as http:
                assert (await http.get("/metrics")).status_code == status


async def test_health_routes(settings: Settings) -> None:
    async with service(settings) as (url, _), client(url) as http:
        ready = await http.get("/readyz")
        assert ready.status_code == 200
        assert {name: check["ok"] for name, check in ready.json()["checks"].items()} == {
            "postgresql": True,
            "schema": True,
            "milvus": True,
            "neo4j": True,
        }
        assert (await http.get("/livez")).json() == {"live": True}
        assert len((await http.get("/livez")).headers["x-request-id"]) == 32


async def test_the_reference_needs_nothing_from_elsewhere(settings: Settings) -> None:
    async with service(settings) as (url, _), client(url) as http:
        document = (await http.get("/openapi.json")).json()
        page = await http.get("/docs")
    assert {f"/v1/nodes/MEMORY.{name}" for name in ("GET", "QUERY", "SEARCH", "WRITE", "UPDATE", "DELETE")} <= set(
        document["paths"]
    )
    assert page.status_code == 200
    assert "/v1/nodes/MEMORY.WRITE" in page.text
    assert not re.search(r"(?:src|href)=[\"']?(?:https?:)?//", page.text)
    assert "<script" not in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]


async def test_unknown_paths_have_the_error_shape(settings: Settings) -> None:
    async with service(settings) as (url, _), client(url) as http:
        missing = await http.get("/v2/nothing", headers={"X-Request-Id": "mine"})
        wrong = await http.post("/livez")
    assert missing.status_code == 404
    assert missing.json() == {"error": {"code": "NOT_FOUND", "message": "Not Found"}, "requestId": "mine"}
    assert missing.headers["x-request-id"] == "mine"
    assert wrong.status_code == 405


async def test_read_your_writes_through_the_cache(settings: Settings, keys: Keys) -> None:
    cached = settings.model_copy(update={"cache": settings.cache.model_copy(update={"consistency": "cached"})})
    async with (
        service(cached) as (one, _),
        service(cached) as (two, _),
        client(one, keys["ann"]) as here,
        client(two, keys["ann"]) as there,
    ):
        identifier = (await node(here, "WRITE", {"memories": [{"content": 1}]}))[0]["id"]
        for content in range(2, 6):
            await node(here, "UPDATE", {"memories": [{"id": identifier, "content": content}]})
            assert (await node(here, "GET", {"ids": [identifier]}))[0]["content"] == content

        async def seen() -> bool:
            return bool((await node(there, "GET", {"ids": [identifier]}))[0]["content"] == 5)

        await eventually(seen, 10)


async def test_expiry_and_pruning_run_once_at_a_time(settings: Settings, database: Database) -> None:
    from memplane.api.upkeep import alone

    running, most = 0, 0

    async def work() -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.05)
        running -= 1
        return 1

    done = await asyncio.gather(*(alone(database, "expiry", work) for _ in range(8)))
    assert most == 1
    assert 1 <= sum(done) < 8
    assert await alone(database, "expiry", work) == 1, "the lock goes with its transaction"


async def test_targets_follow_the_settings(settings: Settings, keys: Keys) -> None:
    from memplane.settings import CacheSettings, MilvusSettings, Neo4jSettings

    bare = settings.model_copy(
        update={"milvus": MilvusSettings(), "neo4j": Neo4jSettings(), "cache": CacheSettings(max_bytes=0)}
    )
    async with service(bare) as (url, process), client(url, keys["ann"]) as http:
        assert process.connections.targets == frozenset()
        await node(http, "WRITE", {"memories": [{"content": "only keyword search is left"}]})
        assert len(await node(http, "SEARCH", {"query": "keyword"})) == 1
        async with process.connections.database.acquire() as connection:
            count = await connection.fetchval(
                process.connections.database.sql("SELECT count(*) FROM {schema}.memory_outbox")
            )
    assert count == 0
    assert Target.MILVUS not in process.connections.targets
