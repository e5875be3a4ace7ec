"""Purge on a real PostgreSQL: each condition holds a tombstone back; what may go goes, whatever happens."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from memplane.errors import PluginError
from memplane.outbox.admin import discard
from memplane.outbox.enqueue import Repair, enqueue_repairs
from memplane.outbox.events import Family, Target
from memplane.outbox.locks import lock_memories
from memplane.outbox.shadow import count_shadowed
from memplane.purge import leftovers as leftovers_module
from memplane.purge import purge, terms_of
from memplane.purge import tombstones as tombstones_module
from memplane.purge.leftovers import BEFORE_ALL, purge_embeddings
from memplane.schema.database import Database
from memplane.schema.totals import read_totals
from memplane.settings import PostgresSettings
from memplane.signal import Signal
from tests.consolidation.world import job
from tests.purge.world import SETTINGS, Yard


@pytest.fixture
async def database(module_postgres_settings: PostgresSettings) -> AsyncIterator[Database]:
    """One database for all tests here, emptied for each."""
    pool = Database(module_postgres_settings, application_name="memplane-tests")
    async with pool.acquire() as connection:
        await connection.execute(
            pool.sql(
                "TRUNCATE {schema}.long_term_memory, {schema}.memory_edge, {schema}.memory_embedding,"
                " {schema}.memory_outbox, {schema}.projection_generation, {schema}.reconciliation_run,"
                " {schema}.memory_supersedes, {schema}.upkeep_total, {schema}.projection_shadow CASCADE"
            )
        )
    yield pool
    await pool.close()


@pytest.fixture
def yard(database: Database) -> Yard:
    return Yard(database)


async def dump(yard: Yard) -> list[dict[str, Any]]:
    return await yard.rows(
        "SELECT row_to_json(m)::text AS row FROM {schema}.long_term_memory AS m UNION ALL"
        " SELECT row_to_json(o)::text FROM {schema}.memory_outbox AS o UNION ALL"
        " SELECT row_to_json(e)::text FROM {schema}.memory_edge AS e ORDER BY 1"
    )


async def test_a_tombstone_goes_when_everything_holds(yard: Yard) -> None:
    (live,) = await yard.write("live")
    gone = await yard.deleted(12)
    preview = await yard.purge(dry_run=True)
    assert (preview.tombstones, preview.removed) == ({"ready": 12}, {})
    report = await yard.purge()
    assert (report.tombstones, report.removed["tombstones"]) == ({"ready": 12}, 12)
    assert await yard.ids() == {live}
    async with yard.database.acquire() as connection:
        assert (await read_totals(connection, yard.database))[("purged", "tombstones")] == len(gone)
    again = await yard.purge()
    assert (again.tombstones, again.removed) == ({}, {})


async def pending(yard: Yard, memory: int) -> None:
    statement = (
        "UPDATE {schema}.memory_outbox SET status = 'pending' WHERE id = (SELECT max(id) FROM {schema}.memory_outbox)"
    )
    await yard.rows(statement)


async def marked(yard: Yard, memory: int) -> None:
    await yard.rows("UPDATE {schema}.long_term_memory SET content_hash = ''")


async def in_flight(yard: Yard, memory: int) -> None:
    await yard.rows(
        "UPDATE {schema}.memory_outbox SET status = 'processing'"
        " WHERE id = (SELECT min(id) FROM {schema}.memory_outbox WHERE aggregate_version = 2)"
    )


async def dead(yard: Yard, memory: int) -> None:
    await yard.rows(
        "UPDATE {schema}.memory_outbox SET status = 'dead' WHERE target = 'neo4j' AND aggregate_version = 2"
    )


async def compared_only(yard: Yard, memory: int) -> None:
    async with yard.database.transaction() as connection:
        await count_shadowed(connection, yard.database, Target.MILVUS, compared=1, different=0)


async def failed_run(yard: Yard, memory: int) -> None:
    await yard.rows("UPDATE {schema}.reconciliation_run SET state = 'failed' WHERE target = 'milvus'")


async def unfinished_run(yard: Yard, memory: int) -> None:
    await yard.rows("UPDATE {schema}.reconciliation_run SET state = 'running' WHERE target = 'neo4j'")


async def incremental_run(yard: Yard, memory: int) -> None:
    await yard.rows("UPDATE {schema}.reconciliation_run SET kind = 'incremental' WHERE target = 'neo4j'")


async def run_before(yard: Yard, memory: int) -> None:
    await yard.rows("UPDATE {schema}.reconciliation_run SET started_at = started_at - interval '2 hours'")


async def run_of_another_generation(yard: Yard, memory: int) -> None:
    await yard.rows("UPDATE {schema}.projection_generation SET state = 'retired' WHERE target = 'milvus'")
    await yard.rows("INSERT INTO {schema}.projection_generation (target, state) VALUES ('milvus', 'active')")


async def naming_run(yard: Yard, memory: int) -> None:
    await yard.full_run(Target.MILVUS, names=[memory])


async def late_repair(yard: Yard, memory: int) -> None:
    await yard.rows(
        "UPDATE {schema}.memory_outbox SET processed_at = clock_timestamp()"
        " WHERE id = (SELECT max(id) FROM {schema}.memory_outbox)"
    )


async def young(yard: Yard, memory: int) -> None:
    await yard.rows("UPDATE {schema}.long_term_memory SET deleted_at = now() - interval '3500 seconds'")


HINDRANCES: list[tuple[Callable[[Yard, int], Awaitable[None]], str]] = [
    (pending, "unfinished_events"),
    (in_flight, "unfinished_events"),
    (marked, "unfinished_events"),
    (dead, "dead_events"),
    (compared_only, "shadow"),
    (failed_run, "no_full_run"),
    (unfinished_run, "no_full_run"),
    (incremental_run, "no_full_run"),
    (run_before, "no_full_run"),
    (run_of_another_generation, "no_full_run"),
    (naming_run, "named_by_a_run"),
    (late_repair, "no_full_run"),
    (young, "retained"),
]


@pytest.mark.parametrize(("hinder", "verdict"), HINDRANCES, ids=[one.__name__ for one, _ in HINDRANCES])
async def test_each_condition_alone_holds_it_back(
    yard: Yard, hinder: Callable[[Yard, int], Awaitable[None]], verdict: str
) -> None:
    (memory,) = await yard.deleted()
    await hinder(yard, memory)
    before = await dump(yard)
    assert (await yard.purge(dry_run=True)).tombstones == {verdict: 1}
    assert await dump(yard) == before
    report = await yard.purge()
    assert report.tombstones == {verdict: 1}
    assert await yard.ids() == {memory}


async def test_nothing_goes_while_a_target_is_in_shadow(yard: Yard) -> None:
    (memory,) = await yard.deleted()
    shadow = SETTINGS.model_copy(update={"outbox": SETTINGS.outbox.model_copy(update={"mode": "Shadow"})})
    assert (await yard.purge(settings=shadow)).tombstones == {"shadow": 1}
    assert await yard.ids() == {memory}
    assert (await yard.purge()).removed["tombstones"] == 1


async def test_what_changed_between_the_look_and_the_lock_is_judged_again(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    (memory,) = await yard.deleted()
    real = tombstones_module.page

    async def looked(*arguments: Any) -> Any:
        found = await real(*arguments)
        if found and found[0].unfinished == 0:
            await pending(yard, memory)
        return found

    monkeypatch.setattr("memplane.purge.run.page", looked)
    assert (await yard.purge()).removed.get("tombstones", 0) == 0
    assert await yard.ids() == {memory}


async def test_events_that_are_pruned_do_not_hide_when_they_were_processed(yard: Yard) -> None:
    (memory,) = await yard.write("a")
    await yard.delete(memory)
    await yard.full_run()
    await yard.process()
    await yard.purge()
    await yard.rows("DELETE FROM {schema}.memory_outbox")
    await yard.pass_time(4000)
    # That run began before the delete was processed, and nothing but the note knows it.
    assert (await yard.purge()).tombstones == {"no_full_run": 1}
    await yard.full_run()
    assert (await yard.purge()).removed["tombstones"] == 1


async def test_a_discarded_event_is_no_hindrance_once_a_run_has_proven_it(yard: Yard) -> None:
    (memory,) = await yard.deleted()
    await dead(yard, memory)
    (event,) = await yard.rows("SELECT id FROM {schema}.memory_outbox WHERE status = 'dead'")
    await discard(yard.database, [event["id"]])
    assert (await yard.purge()).tombstones == {"no_full_run": 1}
    await yard.full_run()
    assert (await yard.purge()).removed["tombstones"] == 1


async def test_without_projections_events_and_retention_decide(database: Database) -> None:
    yard = Yard(database, targets=[Target.LTM_CACHE])
    (memory,) = await yard.write("a")
    await yard.delete(memory)
    await yard.process()
    assert (await yard.purge()).tombstones == {"retained": 1}
    await yard.pass_time(4000)
    assert (await yard.purge()).removed["tombstones"] == 1


# What goes beside tombstones -----------------------------------------------------------------------------------------


async def test_edges_go_with_their_source_and_removed_edges_of_the_living_when_proven(yard: Yard) -> None:
    target, other = await yard.write("target", "other")
    (source,) = await yard.write("source", relations=[{"type": "x", "target": str(target)}])
    (stays,) = await yard.write(
        "stays", relations=[{"type": "x", "target": str(target)}, {"type": "x", "target": str(other)}]
    )
    await yard.delete(source)
    await yard.update(stays, metadata={"relations": [{"type": "x", "target": str(other)}]})
    await yard.process()
    await yard.pass_time(4000)
    assert "edges" not in (await yard.purge()).removed
    await yard.full_run(Target.NEO4J, names=[source, stays])
    assert "edges" not in (await yard.purge()).removed
    await yard.full_run()
    removed = (await yard.purge()).removed
    assert (removed["edges"], removed["tombstones"]) == (1, 1)
    left = await yard.rows("SELECT source_id, target_id FROM {schema}.memory_edge")
    assert left == [{"source_id": stays, "target_id": other}]
    # The edge comes back with a version that is higher than any before.
    relations = [{"type": "x", "target": str(target)}, {"type": "x", "target": str(other)}]
    await yard.update(stays, metadata={"relations": relations})
    versions = await yard.rows("SELECT version FROM {schema}.memory_edge WHERE target_id = $1", target)
    assert versions == [{"version": 3}]


async def test_old_events_and_runs_go_and_the_newest_run_stays(yard: Yard) -> None:
    await yard.write("a")
    await yard.full_run()
    await yard.process()
    await yard.pass_time(4000)
    await yard.full_run()
    await yard.write("b")
    removed = (await yard.purge()).removed
    assert removed == {"events": 3, "runs": 2}
    assert len(await yard.rows("SELECT id FROM {schema}.reconciliation_run")) == 2


async def test_the_chain_outlives_its_memories_for_a_while(yard: Yard) -> None:
    first, _ = await yard.write("same", "same")
    await yard.consolidate(job("exact"))
    await yard.process()
    await yard.pass_time(7300)
    await yard.full_run()
    assert "supersedes" not in (await yard.purge()).removed
    assert await yard.ids() == {first}
    await yard.delete(first)
    await yard.process()
    await yard.pass_time(3700)
    await yard.full_run()
    assert (await yard.purge()).removed["supersedes"] == 1


async def embeddings(yard: Yard) -> set[bytes]:
    return {bytes(row["text_hash"]) for row in await yard.rows("SELECT text_hash FROM {schema}.memory_embedding")}


def digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


async def test_embeddings_that_no_memory_uses_go(yard: Yard) -> None:
    kept, changed, gone = await yard.write("kept", "before", "gone")
    texts = ["kept", "before", "after", "gone", "never", *(f"more {number}" for number in range(12))]
    await yard.embed({text: [1.0, 0.0] for text in texts})
    await yard.update(changed, content="after")
    await yard.delete(gone)
    assert "embeddings" not in (await yard.purge()).removed, "they are kept for an hour whoever uses them"
    await yard.pass_time(3700)
    await yard.embed({"young": [0.0, 1.0]})
    assert (await yard.purge()).removed["embeddings"] == 15
    assert await embeddings(yard) == {digest("kept"), digest("after"), digest("young")}
    assert kept in await yard.ids()


async def test_embeddings_of_a_model_that_no_generation_uses_go(yard: Yard) -> None:
    await yard.write("a")
    await yard.embed({"a": [1.0, 0.0]})
    await yard.rows("UPDATE {schema}.memory_embedding SET model = 'replaced'")
    await yard.pass_time(3700)
    assert (await yard.purge()).removed["embeddings"] == 1


async def test_an_embedding_whose_text_comes_back_at_the_same_moment_stays(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer commits a memory of this text while the delete is under way; its worker has read the embedding."""
    await yard.embed({"text": [1.0, 0.0], "other": [1.0, 0.0]})

    async def meanwhile(*_: object) -> None:
        await yard.write("text")

    monkeypatch.setattr(leftovers_module, "add_totals", meanwhile)
    count, _ = await purge_embeddings(yard.database, BEFORE_ALL, 10, grace_seconds=-1)
    assert count == 1
    assert await embeddings(yard) == {digest("text")}


# Beside others -------------------------------------------------------------------------------------------------------


async def test_a_locked_tombstone_is_left_for_the_next_time(yard: Yard) -> None:
    first, _ = await yard.deleted(2)
    async with yard.database.transaction() as connection:
        await lock_memories(connection, yard.database, [first])
        assert (await yard.purge()).removed["tombstones"] == 1
        assert await yard.ids() == {first}
    # It could not be noted that its events were finished, and they are pruned: that it was before this run is unknown.
    await yard.full_run()
    assert (await yard.purge()).tombstones == {"no_full_run": 1}
    await yard.full_run()
    assert (await yard.purge()).removed["tombstones"] == 1


def repair(memory: int) -> Repair:
    return Repair(Target.MILVUS, memory, "acme", "ann", 2, "delete", Family.NODE)


async def test_a_late_repair_that_waits_for_the_purge_finds_no_row_and_is_made_all_the_same(yard: Yard) -> None:
    """The repair meets the row lock of the purge; after it there is nothing but the event, which deletes."""
    (memory,) = await yard.deleted()
    began = asyncio.Event()

    async def repairing() -> int:
        async with yard.database.transaction() as connection:
            began.set()
            return await enqueue_repairs(connection, yard.database, [repair(memory)])

    async with yard.database.transaction() as connection:
        await connection.fetch(
            yard.database.sql("SELECT FROM {schema}.long_term_memory WHERE id = $1 FOR UPDATE"), memory
        )
        waiting = asyncio.create_task(repairing())
        await began.wait()
        await connection.execute(yard.database.sql("DELETE FROM {schema}.long_term_memory WHERE id = $1"), memory)
    assert await waiting == 1
    (event,) = await yard.rows("SELECT event_type FROM {schema}.memory_outbox WHERE status = 'pending'")
    assert event["event_type"] == "delete_memory_vector"


async def test_a_storm_of_purges_writes_of_the_same_keys_repairs_and_replays(yard: Yard) -> None:
    """Nobody waits for nobody for long, no deadlock ends anything, and what is alive stays."""
    keys = [f"key {number}" for number in range(20)]
    for key in keys:
        await yard.write_keyed(key, key)
    old = [int(row["id"]) for row in await yard.rows("SELECT id FROM {schema}.long_term_memory")]
    await yard.process()
    await yard.delete(*old)
    await yard.process()
    await yard.pass_time(4000)
    await yard.full_run()

    async def writes() -> None:
        for key in keys:
            memory = await yard.write_keyed(key, f"new {key}")
            await yard.update(memory, content=f"newer {key}")

    async def repairs() -> None:
        for memory in old[::2]:
            async with yard.database.transaction() as connection:
                await enqueue_repairs(connection, yard.database, [repair(memory)])
            await yard.rows(
                "UPDATE {schema}.memory_outbox SET status = 'processed', processed_at = now() - interval '2 hours'"
                " WHERE aggregate_id = $1",
                memory,
            )

    async def purges() -> int:
        return sum([(await yard.purge()).removed.get("tombstones", 0) for _ in range(6)])

    counts = await asyncio.gather(purges(), purges(), writes(), repairs())
    removed = sum(count for count in counts if count is not None) + await purges()
    assert removed == len(old)
    items = await yard.items()
    assert {item["key"]: item["content"] for item in items.values()} == {key: f"newer {key}" for key in keys}
    assert await yard.ids() == set(items)


async def test_a_purge_ends_between_transactions_when_it_is_told_to(yard: Yard) -> None:
    await yard.deleted(12)
    stop = Signal()
    report = await purge(yard.database, SETTINGS, yard.targets, signal=stop, progress=lambda kind, count: stop.abort())
    assert report.cancelled
    assert len(await yard.ids()) == 7
    assert (await yard.purge()).removed["tombstones"] == 7


async def test_a_purge_that_fails_within_a_batch_leaves_the_whole_batch(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await yard.deleted(3)
    before = await dump(yard)

    async def fails(*_: object) -> None:
        raise PluginError("STORE_UNAVAILABLE", "gone")

    with monkeypatch.context() as patched:
        patched.setattr(tombstones_module, "add_totals", fails)
        with pytest.raises(PluginError):
            await tombstones_module.remove(yard.database, made, await terms_of(yard.database, SETTINGS, yard.targets))
    assert await dump(yard) == before
