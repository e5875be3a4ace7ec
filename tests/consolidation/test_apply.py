"""Plans carried out on a real PostgreSQL: what is changed, with which events, and that it is all or nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from memplane.consolidation import (
    KeepPolicy,
    Memory,
    Merged,
    PlanConflict,
    Step,
    apply,
    make_plan,
    plans,
    read_chain,
    scopes,
)
from memplane.consolidation import run as run_module
from memplane.contracts import Scope
from memplane.errors import PluginError
from memplane.plugins.postgres.backfill import backfill_tokens
from memplane.schema.committed import Committed
from memplane.schema.database import Database
from memplane.schema.totals import read_totals
from memplane.settings import PostgresSettings
from memplane.signal import Signal
from tests.consolidation.world import User, job

DUMP = """
SELECT row_to_json(m)::text AS row FROM {schema}.long_term_memory AS m
UNION ALL SELECT row_to_json(e)::text FROM {schema}.memory_edge AS e
UNION ALL SELECT row_to_json(o)::text FROM {schema}.memory_outbox AS o
UNION ALL SELECT row_to_json(s)::text FROM {schema}.memory_supersedes AS s
UNION ALL SELECT row_to_json(t)::text FROM {schema}.upkeep_total AS t
ORDER BY 1
"""


@pytest.fixture
async def database(module_postgres_settings: PostgresSettings) -> AsyncIterator[Database]:
    """One database for all tests here: each has a user of its own."""
    pool = Database(module_postgres_settings, application_name="memplane-tests")
    yield pool
    await pool.close()


@pytest.fixture
def ann(database: Database) -> User:
    return User(database, user=f"ann-{uuid4().hex[:8]}")


async def totals(user: User) -> int:
    async with user.database.acquire() as connection:
        return (await read_totals(connection, user.database)).get(("consolidated", "exact"), 0)


async def dump(user: User) -> list[str]:
    """Everything that a consolidation may change, as it stands."""
    return [row["row"] for row in await user.rows(DUMP)]


async def test_duplicates_become_one_with_events_chain_and_totals(ann: User) -> None:
    first, second, third = await ann.write("the same", "the same", "the same")
    other = await ann.write("another")
    before = await totals(ann)
    report = await ann.consolidate(job("exact"))
    assert (report.superseded, report.updated, report.looked_at, report.by_rule) == (2, 0, 4, {"exact": 2})
    assert set(await ann.items()) == {first, *other}
    tombstones = await ann.rows(
        "SELECT id, version, superseded_by FROM {schema}.long_term_memory"
        " WHERE deleted_at IS NOT NULL AND user_id = $1 ORDER BY id",
        ann.scope.user,
    )
    assert tombstones == [{"id": one, "version": 2, "superseded_by": first} for one in (second, third)]
    events = await ann.rows(
        "SELECT aggregate_id, target, event_type FROM {schema}.memory_outbox WHERE status = 'pending'"
        " AND aggregate_version = 2 AND user_id = $1 ORDER BY aggregate_id, target",
        ann.scope.user,
    )
    assert [(row["aggregate_id"], row["event_type"]) for row in events] == [
        (one, kind)
        for one in (second, third)
        for kind in ("invalidate_ltm_cache", "delete_memory_vector", "delete_memory_graph_node")
    ]
    chain = await read_chain(ann.database, first, "acme")
    assert [(one.superseded_id, one.superseded_version, one.rule) for one in chain.supersedes] == [
        (second, 1, "exact"),
        (third, 1, "exact"),
    ]
    assert await totals(ann) == before + 2
    assert (await ann.consolidate(job("exact"))).changed == 0


async def test_nothing_is_done_without_a_rule(ann: User) -> None:
    await ann.write("a", "a", importance=0.5)
    before = await dump(ann)
    assert (await ann.consolidate(job())).changed == 0
    assert await dump(ann) == before


async def test_planning_changes_nothing(ann: User) -> None:
    await ann.write("a", "a", importance=0.5)
    await ann.age(90 * 86400)
    before = await dump(ann)
    made = [one async for one in plans(ann.database, ann.scope, job("exact", "near", "decay", "expiry"))]
    assert [len(one.steps) for one in made] == [1]
    assert await dump(ann) == before


async def test_other_users_and_tenants_stay_apart(database: Database) -> None:
    users = [User(database, user="ann", tenant="t1"), User(database, user="bob", tenant="t1")]
    users += [User(database, user="ann", tenant="t2")]
    for user in users:
        await user.write("the same")
    assert [(await user.consolidate(job("exact", "near"))).changed for user in users] == [0, 0, 0]
    found = [scope async for scope in scopes(database)]
    assert [scope for scope in found if scope.tenant.startswith("t")] == [user.scope for user in users]
    assert [scope async for scope in scopes(database, "t2")] == [users[2].scope]
    assert [scope async for scope in scopes(database, "other")] == []


async def test_the_survivor_takes_metadata_and_relations(ann: User) -> None:
    (target,) = await ann.write("target")
    (first,) = await ann.write("same", tags=["a"], note="mine")
    relation = {"type": "likes", "target": str(target)}
    (second,) = await ann.write("same", tags=["b"], note="yours", more=True, importance=0.7, relations=[relation])
    (pointing,) = await ann.write("pointing", relations=[{"type": "cites", "target": str(second)}])
    report = await ann.consolidate(job("exact"))
    assert (report.superseded, report.updated) == (1, 2)
    items = await ann.items()
    assert items[first]["metadata"] == {
        "tags": ["a", "b"],
        "note": "mine",
        "more": True,
        "importance": 0.7,
        "relations": [relation],
    }
    assert items[pointing]["metadata"] == {"relations": [{"type": "cites", "target": str(first)}]}
    assert await ann.edges() >= {(first, "likes", target), (pointing, "cites", first)}
    assert (items[first]["version"], items[pointing]["version"]) == (2, 2)
    # What a caller reads back can be written again.
    await ann.update(pointing, metadata=items[pointing]["metadata"])
    await ann.update(first, metadata=items[first]["metadata"])


async def test_keys_are_never_lost(ann: User) -> None:
    (loose,) = await ann.write("same")
    one, two = await ann.write_keyed("one", "same"), await ann.write_keyed("two", "same")
    await ann.consolidate(job("exact"))
    assert {number: item["key"] for number, item in (await ann.items()).items()} == {one: "one", two: "two"}
    assert loose not in await ann.items()


async def test_near_duplicates_by_stored_embeddings_of_the_active_generation(ann: User) -> None:
    one, two, three, four = await ann.write("tea is nice", "tea is very nice", "coffee", "no embedding")
    await ann.embed({"tea is nice": [1, 0], "tea is very nice": [1, 0.1], "coffee": [0, 1]})
    assert (await ann.consolidate(job("near"))).by_rule == {"near": 1}
    assert set(await ann.items()) == {two, three, four}
    chain = await read_chain(ann.database, one, "acme")
    assert [(up.survivor_id, up.rule) for up in chain.superseded_by] == [(two, "near")]


async def test_importance_decays_along_one_curve(ann: User) -> None:
    (memory,) = await ann.write("a", importance=0.8, other=1)
    expected = 0.8
    for _ in range(3):
        await ann.age(86400)
        assert (await ann.consolidate(job("decay"))).by_rule == {"decay": 1}
        expected /= 2
        item = (await ann.items())[memory]
        assert item["metadata"] == {"importance": pytest.approx(expected, abs=1e-4), "other": 1}
        (row,) = await ann.rows("SELECT importance, version FROM {schema}.long_term_memory WHERE id = $1", memory)
        assert row["importance"] == item["metadata"]["importance"]
    assert row["version"] == 4
    assert (await ann.consolidate(job("decay"))).changed == 0


async def test_expired_memories_become_tombstones_without_a_successor(ann: User) -> None:
    soon = (datetime.now(UTC) + timedelta(seconds=0.3)).isoformat()
    await ann.write("gone", "gone", expires_at=soon)
    (stays,) = await ann.write("stays")
    await asyncio.sleep(0.4)
    report = await ann.consolidate(job("exact", "expiry"))
    assert (report.expired, report.superseded, report.by_rule) == (2, 0, {"expiry": 2})
    rows = await ann.rows(
        "SELECT superseded_by FROM {schema}.long_term_memory WHERE deleted_at IS NOT NULL AND user_id = $1",
        ann.scope.user,
    )
    assert rows == [{"superseded_by": None}] * 2
    assert set(await ann.items()) == {stays}


async def test_the_chain_goes_on_and_stays_within_its_tenant(ann: User) -> None:
    first, second = await ann.write("a", "a")
    await ann.consolidate(job("exact"))
    keyed = await ann.write_keyed("k", "a")
    await ann.consolidate(job("exact"))
    up = await read_chain(ann.database, second, "acme")
    assert [one.survivor_id for one in up.superseded_by] == [first, keyed]
    down = await read_chain(ann.database, keyed, None)
    assert {one.superseded_id for one in down.supersedes} == {first, second}
    for foreign in (first, second, keyed):
        hidden = await read_chain(ann.database, foreign, "other")
        assert (hidden.superseded_by, hidden.supersedes) == ((), ())


async def test_a_delete_that_was_taken_back_may_be_merged_again(ann: User) -> None:
    """An application that shares the table can do that; the chain then tells of the last time, and ends."""
    first, second = await ann.write("a", "a")
    await ann.consolidate(job("exact"))
    await ann.rows(
        "UPDATE {schema}.long_term_memory SET deleted_at = NULL, superseded_by = NULL, version = 3 WHERE id = $1",
        second,
    )
    await ann.update(first, metadata={"x": 1})
    await ann.rows("UPDATE {schema}.long_term_memory SET key = 'k' WHERE id = $1", second)
    assert (await ann.consolidate(job("exact"))).superseded == 1
    chain = await read_chain(ann.database, first, "acme")
    assert [one.survivor_id for one in chain.superseded_by] == [second, first]
    assert len(chain.supersedes) == 2
    await ann.rows("UPDATE {schema}.long_term_memory SET key = NULL WHERE id = $1", second)
    (third,) = [await ann.write_keyed("l", "a")]
    assert (await ann.consolidate(job("exact"))).superseded == 1
    (entry,) = await ann.rows("SELECT survivor_id FROM {schema}.memory_supersedes WHERE superseded_id = $1", second)
    assert entry["survivor_id"] == third


class Joins(KeepPolicy):
    """Joins the contents of duplicates and of memories that a user marked."""

    needs_content = True

    def groups(self, memories: Sequence[Memory]) -> Sequence[Sequence[int]]:
        return [[one.id for one in memories if one.metadata and "join" in one.metadata]]

    def merge(self, survivor: Memory, absorbed: Sequence[Memory], contents: Mapping[int, Any]) -> Merged | None:
        return Merged({"joined": True}, [contents[one.id] for one in (survivor, *absorbed)])


async def test_a_policy_writes_a_new_content_through_the_store(ann: User) -> None:
    one, two = await ann.write("x", {"y": 1}, join=True)
    await ann.write("z")
    report = await ann.consolidate(job("policy", policy=Joins()))
    assert report.by_rule == {"policy": 1}
    item = (await ann.items())[one]
    assert (item["content"], item["metadata"]) == (["x", {"y": 1}], {"joined": True})
    assert two not in await ann.items()
    # The words of the new content are indexed, and its hash is that of the row.
    assert await backfill_tokens(ann.database) == 0
    assert (await ann.consolidate(job("policy", policy=Joins()))).changed == 0


# All or nothing ------------------------------------------------------------------------------------------------------


async def steps_of(user: User, *rules: Any) -> tuple[Step, ...]:
    return (await make_plan(user.database, user.scope, job(*rules)))[0].steps


async def changes_in_between(user: User, ids: list[int]) -> list[Any]:
    return [
        lambda: user.update(ids[0], content="changed"),
        lambda: user.update(ids[1], metadata={"changed": True}),
        lambda: user.delete(ids[0]),
        lambda: user.delete(ids[1]),
        lambda: user.write("points", relations=[{"type": "x", "target": str(ids[1])}]),
        lambda: user.update(ids[2], metadata={"relations": [{"type": "new", "target": str(ids[1])}]}),
    ]


@pytest.mark.parametrize("place", range(6))
async def test_whatever_changed_since_the_plan_stops_all_of_it(ann: User, place: int) -> None:
    ids = await ann.write("same", "same", "else")
    await ann.write("b", "b")
    steps = await steps_of(ann, "exact")
    await (await changes_in_between(ann, ids))[place]()
    before = await dump(ann)
    with pytest.raises(PlanConflict):
        await apply(ann.writing, ann.scope, steps)
    assert await dump(ann) == before
    report = await ann.consolidate(job("exact"))
    assert report.conflicts == 0
    assert report.superseded == {0: 1, 1: 2, 2: 1, 3: 1, 4: 2, 5: 2}[place]


STATEMENTS = [
    "INSERT INTO {schema}.memory_outbox",
    "INSERT INTO {schema}.memory_supersedes",
    "INSERT INTO {schema}.upkeep_total",
    "SET deleted_at",
    "SET superseded_by",
    "INSERT INTO {schema}.memory_edge",
    "SET content",
]


@pytest.mark.parametrize("statement", STATEMENTS)
async def test_a_merge_that_fails_at_any_step_changes_no_memory_and_no_event(
    ann: User, statement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (target,) = await ann.write("target")
    await ann.write("same")
    (second,) = await ann.write("same", relations=[{"type": "likes", "target": str(target)}])
    await ann.write("points", relations=[{"type": "cites", "target": str(second)}])
    before = await dump(ann)
    met = 0

    def failing(text: str, real: Any = ann.database.sql) -> str:
        nonlocal met
        if statement in text:
            met += 1
            return f"{real(text)} and then fail"
        return str(real(text))

    with monkeypatch.context() as patched:
        patched.setattr(ann.database, "sql", failing)
        with pytest.raises(asyncpg.PostgresSyntaxError):
            await ann.consolidate(job("exact"))
    assert met
    assert await dump(ann) == before
    assert (await ann.consolidate(job("exact"))).superseded == 1


async def test_large_scopes_are_worked_through_in_windows_and_small_transactions(ann: User) -> None:
    for _ in range(4):
        await ann.write(*(f"text {number}" for number in range(30)))
    report = await ann.consolidate(job("exact", window=20, batch_size=10))
    assert report.superseded == 90
    assert len(await ann.items()) == 30
    largest = await ann.rows(
        "SELECT count(*) FROM {schema}.memory_supersedes WHERE user_id = $1 GROUP BY created_at", ann.scope.user
    )
    assert max(row["count"] for row in largest) <= 10


async def test_many_copies_of_one_memory(ann: User) -> None:
    await ann.write(*["same"] * 35)
    report = await ann.consolidate(job("exact", batch_size=10))
    assert (report.superseded, report.skipped, report.unfinished) == (34, 0, 0)
    assert len(await ann.items()) == 1


async def test_a_run_ends_between_transactions_when_it_is_told_to(ann: User) -> None:
    await ann.write(*(f"text {number % 20}" for number in range(40)))
    stop = Signal()
    report = await ann.consolidate(job("exact", batch_size=2), signal=stop, progress=lambda _: stop.abort())
    assert report.cancelled
    assert report.superseded == 1
    assert (await ann.consolidate(job("exact"))).superseded == 19


async def test_what_was_committed_is_told_to_this_process_cache(ann: User) -> None:
    told: list[Committed] = []
    first, second = await ann.write("a", "a")
    await ann.update(second, metadata={"x": 1})
    user = User(ann.database, user=ann.scope.user)
    user.writing = type(user.writing)(ann.database, user.writing.targets, on_commit=told.extend)
    await user.consolidate(job("exact"))
    by_id = {one.memory_id: one for one in told}
    assert by_id[second].item is None
    updated = by_id[first].item
    assert updated is not None
    assert updated["metadata"] == {"x": 1}


# Beside others -------------------------------------------------------------------------------------------------------


async def test_beside_writers_nothing_is_lost_and_no_merge_is_half_done(ann: User) -> None:
    """Writers change, delete and relate the very memories that are merged; every acknowledged change is found."""
    chance = random.Random(7)
    texts = [f"text {number}" for number in range(12)]
    ids = await ann.write(*texts * 3)
    said: dict[int, int] = {}
    refusals: set[str] = set()
    stop = asyncio.Event()

    async def writer(number: int) -> None:
        own = random.Random(number)
        while not stop.is_set():
            memory = own.choice(ids)
            try:
                if own.random() < 0.1:
                    ids.extend(await ann.write(own.choice(texts)))
                elif own.random() < 0.2:
                    relation = {"type": "x", "target": str(own.choice(ids))}
                    await ann.update(memory, metadata={"mark": said.get(memory, 0), "relations": [relation]})
                else:
                    mark = own.randint(1, 10**9)
                    await ann.update(memory, metadata={"mark": mark})
                    said[memory] = mark
            except PluginError as error:
                refusals.add(error.code)
            await asyncio.sleep(0.01)

    writers = [asyncio.create_task(writer(number)) for number in range(4)]
    total = 0
    for _ in range(4):
        wanted = job("exact", batch_size=chance.choice([4, 20]))
        total += (await ann.consolidate(wanted)).superseded
    stop.set()
    await asyncio.gather(*writers)
    total += (await ann.consolidate(job("exact"))).superseded
    # The memory that was to change, or one that it was to point to, had been merged.
    assert refusals <= {"NOT_FOUND", "INVALID_INPUT"}
    items = await ann.items()
    assert total == len(ids) - len(items) > 24
    assert len({item["content"] for item in items.values()}) == len(items) == len(texts)
    await consistent(ann)


async def consistent(user: User) -> None:
    """Tombstones have successors, successors lead to something alive, live edges end at living memories."""
    half = await user.rows(
        """
        SELECT m.id FROM {schema}.long_term_memory AS m
        LEFT JOIN {schema}.memory_supersedes AS s ON s.superseded_id = m.id
        WHERE (m.deleted_at IS NOT NULL AND m.superseded_by IS NOT NULL) <> (s.superseded_id IS NOT NULL)
           OR s.survivor_id <> m.superseded_by OR s.superseded_version + 1 <> m.version
        """
    )
    assert half == []
    dangling = await user.rows(
        """
        SELECT e.source_id FROM {schema}.memory_edge AS e
        LEFT JOIN {schema}.long_term_memory AS s ON s.id = e.source_id AND s.deleted_at IS NULL
        LEFT JOIN {schema}.long_term_memory AS t ON t.id = e.target_id AND t.deleted_at IS NULL
        WHERE e.deleted_at IS NULL AND (s.id IS NULL OR t.id IS NULL)
        """
    )
    assert dangling == []
    unannounced = await user.rows(
        """
        SELECT m.id FROM {schema}.long_term_memory AS m
        WHERE NOT EXISTS (SELECT FROM {schema}.memory_outbox AS o
                          WHERE o.aggregate_id = m.id AND o.aggregate_version = m.version AND o.target = 'milvus')
        """
    )
    assert unannounced == []


async def test_consolidations_beside_each_other_merge_everything_once(ann: User) -> None:
    await ann.write(*(f"text {number % 30}" for number in range(120)))
    reports = await asyncio.gather(*(ann.consolidate(job("exact", batch_size=6, attempts=100)) for _ in range(4)))
    assert sum(report.superseded for report in reports) == 90
    await consistent(ann)


async def test_a_window_is_given_up_after_too_many_conflicts(ann: User, monkeypatch: pytest.MonkeyPatch) -> None:
    await ann.write("a", "a")

    async def overtaken(*_: object) -> None:
        raise PlanConflict(1)

    monkeypatch.setattr(run_module, "apply", overtaken)
    report = await ann.consolidate(job("exact", attempts=3))
    assert (report.conflicts, report.unfinished, report.changed) == (3, 1, 0)


async def test_a_scope_without_memories(ann: User) -> None:
    made, following = await make_plan(ann.database, Scope("acme", "nobody"), job("exact", "near", "decay", "expiry"))
    assert (made.steps, made.looked_at, following) == ((), 0, None)
