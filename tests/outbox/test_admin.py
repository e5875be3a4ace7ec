"""What operators do and see: list, inspect, replay, discard, backlog, metrics, pruning."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from memplane.outbox import admin
from memplane.outbox.claim import claim, complete
from memplane.outbox.counted import SNAPSHOT_SECONDS
from memplane.outbox.events import Target
from memplane.outbox.metrics import DatabaseMetrics, LatencyHistogram, Metrics
from memplane.outbox.prune import prune_processed
from memplane.outbox.putback import Failure, Fate, fail
from memplane.outbox.retry import RetryPolicy
from memplane.schema.database import Database
from tests.outbox.world import ALL_TARGETS, NEO4J, change, claim_some, create, execute, rows, statuses

KILL = RetryPolicy(max_attempts=1)


async def kill(database: Database, target: Target = Target.MILVUS) -> list[int]:
    """Claim what is pending and let it die; returns the event ids."""
    events = await claim_some(database, target)
    await fail(database, [Failure(event, "no") for event in events], KILL)
    return sorted(event.id for event in events)


async def test_events_are_listed_newest_first_page_by_page(database: Database) -> None:
    await create(database, 5, targets=ALL_TARGETS)
    page = await admin.list_events(database, target=Target.MILVUS, status="pending", limit=3)
    rest = await admin.list_events(database, target=Target.MILVUS, status="pending", limit=3, before=page[-1].id)
    assert [len(page), len(rest)] == [3, 2]
    ids = [record.id for record in page + rest]
    assert ids == sorted(ids, reverse=True)
    assert {record.target for record in page} == {"milvus"}
    assert page[0].payload["content_hash"] == "h1"
    assert await admin.list_events(database, status="dead") == []
    assert len(await admin.list_events(database, memory_id=page[0].memory_id)) == 3
    assert await admin.list_events(database, tenant="other") == []
    assert len(await admin.list_events(database, tenant="t", user_id="u")) == 15


async def test_an_event_is_found_by_either_id_and_only_by_its_tenant(database: Database) -> None:
    await create(database)
    [row] = await rows(database)
    for key in (row["id"], row["event_id"]):
        record = await admin.inspect(database, key, tenant="t")
        assert record is not None
        assert (record.id, record.event_id, record.status) == (row["id"], row["event_id"], "pending")
        assert await admin.inspect(database, key, tenant="other") is None
    assert await admin.inspect(database, 404) is None


async def test_replay_brings_dead_events_back_with_a_clean_slate(database: Database) -> None:
    await create(database, 2)
    dead = await kill(database)
    assert await admin.replay(database, [*dead, 404], tenant="other") == {}
    assert await admin.replay(database, [*dead, 404]) == dict.fromkeys(dead, Fate.PENDING)
    assert await admin.replay(database, dead) == {}, "they are not dead any more"
    assert [(row["status"], row["attempts"]) for row in await rows(database)] == [("pending", 0)] * 2
    assert len(await claim_some(database)) == 2


@pytest.mark.parametrize("newer", ["pending", "processing", "processed"])
async def test_a_replayed_event_is_superseded_by_a_newer_one(database: Database, newer: str) -> None:
    [memory] = await create(database)
    [dead] = await kill(database)
    await change(database, [memory])
    if newer != "pending":
        events = await claim_some(database)
        if newer == "processed":
            await complete(database, events)
    assert await admin.replay(database, [dead]) == {dead: Fate.SUPERSEDED}
    old, new = await rows(database)
    assert (old["status"], old["superseded_by"]) == ("processed", new["id"])
    assert new["status"] == newer


async def test_of_several_dead_events_of_one_memory_the_newest_is_replayed(database: Database) -> None:
    [memory] = await create(database)
    first = await kill(database)
    await change(database, [memory])
    second = await kill(database)
    assert await admin.replay(database, [*first, *second]) == {first[0]: Fate.SUPERSEDED, second[0]: Fate.PENDING}


async def test_a_discarded_or_shadowed_newer_event_does_not_count(database: Database) -> None:
    [memory] = await create(database)
    [first] = await kill(database)
    await change(database, [memory])
    second = await kill(database)
    assert await admin.discard(database, second) == set(second)
    await change(database, [memory])
    await complete(database, await claim_some(database), shadow=True)
    assert await admin.replay(database, [first]) == {first: Fate.PENDING}


async def test_one_after_the_other_the_first_replay_stands_for_the_second(database: Database) -> None:
    [memory] = await create(database)
    [first] = await kill(database)
    await change(database, [memory])
    [second] = await kill(database)
    assert await admin.replay(database, [first]) == {first: Fate.PENDING}
    assert await admin.replay(database, [second]) == {second: Fate.SUPERSEDED}
    [event] = await claim_some(database)
    assert event.id == first


async def test_concurrent_replays_make_one_pending_event(database: Database) -> None:
    [memory] = await create(database)
    dead = await kill(database)
    await change(database, [memory])
    dead += await kill(database)
    await asyncio.gather(*(admin.replay(database, [id_]) for id_ in dead * 3), change(database, [memory]))
    assert (await statuses(database))["pending"] == 1


async def test_discard_gives_up_dead_events_only(database: Database) -> None:
    await create(database, 2)
    dead = await kill(database)
    await create(database)
    pending = [row["id"] for row in await rows(database, "status = 'pending'")]
    assert await admin.discard(database, dead + pending, tenant="other") == set()
    assert await admin.discard(database, dead + pending) == set(dead)
    assert await statuses(database) == {"processed": 2, "pending": 1}
    assert {row["last_error"] for row in await rows(database, "status = 'processed'")} == {admin.DISCARDED}


async def test_the_backlog_in_figures(database: Database) -> None:
    empty = await admin.backlog(database)
    assert (empty.pending, empty.dead, empty.oldest_pending_seconds) == ({}, {}, {})
    await create(database, 5, targets=ALL_TARGETS)
    await kill(database)
    await create(database, 3, targets=NEO4J, edges=True)
    await claim(database, Target.NEO4J, worker="w", limit=2, lease_seconds=60)
    await execute(
        database,
        "UPDATE {schema}.memory_outbox SET created_at = now() - interval '1 h', available_at = now() + interval '1 h' "
        "WHERE id = (SELECT max(id) FROM {schema}.memory_outbox WHERE target = 'ltm_cache')",
    )
    figures = await admin.backlog(database)
    assert figures.pending == {
        ("neo4j", "upsert_memory_graph_node"): 6,
        ("neo4j", "upsert_memory_graph_edges"): 3,
        ("ltm_cache", "invalidate_ltm_cache"): 5,
    }
    assert figures.dead == {("milvus", "upsert_memory_vector"): 5}
    assert figures.processing == {"neo4j": 2}
    assert figures.due == {"neo4j": 9, "ltm_cache": 4}
    assert figures.oldest_pending_seconds["ltm_cache"] >= 3600
    assert 0 <= figures.oldest_pending_seconds["neo4j"] < 600
    assert figures.pending_of(Target.NEO4J) == 9
    assert figures.dead_of(Target.MILVUS) == 5


async def test_metrics_of_the_database_have_the_names_and_labels_of_the_seed(database: Database) -> None:
    await create(database, 4)
    await kill(database)
    await create(database, 2)
    await execute(
        database,
        "INSERT INTO {schema}.reconciliation_run (target, kind, mode, mismatches, repaired) VALUES "
        """('milvus', 'full', 'repair', '{"missing": 3, "orphan": 1}', '{"missing": 3}'), """
        """('milvus', 'full', 'audit', '{"missing": 2}', '{}')""",
    )
    registry, now = CollectorRegistry(), 0.0
    metrics = DatabaseMetrics(database, registry, clock=lambda: now)
    assert generate_latest(registry) == b""
    await metrics.refresh()
    value = registry.get_sample_value
    event = {"target": "milvus", "event_type": "upsert_memory_vector"}
    assert value("memory_outbox_pending_total", event) == 2
    assert value("memory_outbox_dead_total", event) == 4
    assert value("memory_outbox_processing_total") == 0
    assert value("memory_outbox_oldest_pending_seconds", {"target": "milvus"}) > 0  # type: ignore[operator]
    assert value("memory_outbox_oldest_pending_seconds", {"target": "neo4j"}) == 0
    assert value("memory_reconciliation_mismatch_total", {"target": "milvus", "type": "missing"}) == 5
    assert value("memory_reconciliation_repaired_total", {"target": "milvus", "type": "missing"}) == 3
    assert value("memory_reconciliation_repaired_total", {"target": "milvus", "type": "orphan"}) == 0
    await create(database)
    await metrics.refresh()
    assert value("memory_outbox_pending_total", event) == 2, "from the cached snapshot"
    now += SNAPSHOT_SECONDS
    await metrics.refresh()
    assert value("memory_outbox_pending_total", event) == 3


async def test_metrics_are_absent_while_the_database_is_away(database: Database) -> None:
    await create(database)
    registry, now = CollectorRegistry(), 0.0
    metrics = DatabaseMetrics(database, registry, clock=lambda: now)
    await metrics.refresh()
    await execute(database, "ALTER TABLE {schema}.memory_outbox RENAME TO hidden")
    now += SNAPSHOT_SECONDS
    await metrics.refresh()
    assert b"memory_outbox" not in generate_latest(registry)


def test_the_processes_own_metrics_have_their_names_and_labels() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    metrics.retries.labels("milvus").inc()
    metrics.consecutive_failures.labels("milvus").set(2)
    metrics.hash_conflicts.labels("milvus").inc()
    metrics.search_degraded.labels("milvus").inc()
    metrics.latency.observe(Target.MILVUS, [0.01, 0.3, 7200])
    for name in (
        "memory_outbox_retry_total",
        "memory_projection_consecutive_failures",
        "memory_projection_hash_conflict_total",
        "memory_search_degraded_total",
        "memory_projection_latency_seconds_count",
    ):
        assert registry.get_sample_value(name, {"target": "milvus"}), name


def test_the_histogram_counts_into_the_right_buckets() -> None:
    registry = CollectorRegistry()
    histogram = LatencyHistogram(buckets=(0.1, 1.0))
    registry.register(histogram)
    histogram.observe(Target.NEO4J, [0.05, 0.1, 0.5, 5])
    name = "memory_projection_latency_seconds"
    buckets = {
        bound: registry.get_sample_value(f"{name}_bucket", {"target": "neo4j", "le": bound})
        for bound in ("0.1", "1.0", "+Inf")
    }
    assert buckets == {"0.1": 2, "1.0": 3, "+Inf": 4}
    assert registry.get_sample_value(f"{name}_sum", {"target": "neo4j"}) == pytest.approx(5.65)


async def test_pruning_deletes_processed_events_after_their_retention_only(database: Database) -> None:
    await create(database, 7)
    await complete(database, await claim_some(database, limit=3))
    await kill(database)
    await create(database)
    assert await prune_processed(database, retention_seconds=60) == 0
    await execute(
        database,
        "UPDATE {schema}.memory_outbox SET processed_at = now() - interval '2 min', "
        "created_at = now() - interval '1 d'",
    )
    assert await prune_processed(database, retention_seconds=60, batch=2, max_batches=1) == 2
    assert await prune_processed(database, retention_seconds=60, batch=2) == 1
    assert await statuses(database) == {"dead": 4, "pending": 1}


async def test_pruners_share_the_work_beside_claims(database: Database) -> None:
    await create(database, 600)
    await complete(database, await claim_some(database, limit=500))
    deleted, taken = await asyncio.gather(
        asyncio.gather(*(prune_processed(database, retention_seconds=0, batch=50) for _ in range(4))),
        asyncio.gather(*(claim_some(database, limit=25) for _ in range(4))),
    )
    rest = await prune_processed(database, retention_seconds=0)
    assert sum(deleted) + rest == 500
    assert len({event.id for events in taken for event in events}) == 100
