"""Writers that meet: one version wins, keys are taken once, edges never end at a tombstone, nobody deadlocks."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Sequence

import pytest
from tests.plugins.postgres.calls import Calls, assert_sound, edges, expire_now, memories, rows
from tests.plugins.postgres.conftest import ME

from memplane.contracts import Scope
from memplane.errors import PluginError
from memplane.outbox.events import Target
from memplane.plugins.postgres import PostgresBackend, expire
from memplane.schema.database import Database


async def outcomes(calls: Sequence[Awaitable[object]]) -> Counter[str]:
    """How often each code came out; success is "ok". Anything but a PluginError fails the test."""

    async def one(call: Awaitable[object]) -> str:
        try:
            await call
        except PluginError as error:
            return error.code
        return "ok"

    return Counter(await asyncio.gather(*(one(call) for call in calls)))


@pytest.fixture
async def crowd(postgres_settings):
    """A store whose pool lets thirty calls run at once."""
    database = Database(postgres_settings.model_copy(update={"pool_max": 30}))
    yield Calls(PostgresBackend(database, targets=list(Target)).scoped(ME))
    await database.close()


async def test_of_two_writers_on_one_version_one_wins(crowd, database):
    for _ in range(20):
        item = await crowd.one("x")
        calls = [crowd.update({"id": item["id"], "content": n, "expectedVersion": 1}) for n in range(2)]
        assert await outcomes(calls) == {"ok": 1, "CONFLICT": 1}
        assert (await crowd.get(item["id"]))[0]["version"] == 2
    await assert_sound(database)


async def test_update_and_delete_of_one_version(crowd):
    for _ in range(20):
        item = await crowd.one("x")
        result = await outcomes(
            [
                crowd.update({"id": item["id"], "content": 1, "expectedVersion": 1}),
                crowd.delete(item["id"], versions={item["id"]: 1}),
            ]
        )
        assert result in ({"ok": 1, "CONFLICT": 1}, {"ok": 1, "NOT_FOUND": 1})


async def test_forty_workers_on_one_memory_lose_no_change(crowd, database):
    item = await crowd.one(0)

    async def add_one() -> int:
        tries = 0
        while True:
            tries += 1
            seen = (await crowd.get(item["id"]))[0]
            try:
                await crowd.update(
                    {"id": item["id"], "content": seen["content"] + 1, "expectedVersion": seen["version"]}
                )
                return tries
            except PluginError as error:
                if error.code != "CONFLICT":
                    raise

    tries = await asyncio.gather(*(add_one() for _ in range(40)))

    final = (await crowd.get(item["id"]))[0]
    assert (final["content"], final["version"]) == (40, 41)
    assert max(tries) > 1, "the workers did meet"
    waiting = await rows(
        database, "SELECT target, aggregate_version FROM {schema}.memory_outbox WHERE status = 'pending'"
    )
    assert sorted((row["target"], row["aggregate_version"]) for row in waiting) == [
        ("ltm_cache", 41),
        ("milvus", 41),
        ("neo4j", 41),
    ]
    await assert_sound(database)


async def test_last_writer_wins_without_expected_versions(crowd):
    item = await crowd.one("x")
    assert await outcomes([crowd.update({"id": item["id"], "content": n}) for n in range(25)]) == {"ok": 25}
    assert (await crowd.get(item["id"]))[0]["version"] == 26


async def test_a_key_is_taken_once(crowd, database):
    for number in range(10):
        calls = [crowd.one(n, key=f"key {number}") for n in range(12)]
        assert await outcomes(calls) == {"ok": 1, "CONFLICT": 11}
    assert len(await memories(database)) == 10


async def test_batches_with_the_same_keys_in_opposite_order_do_not_deadlock(crowd, database):
    for number in range(10):
        keys = [f"{number} {n}" for n in range(20)]
        calls = [
            crowd.write(*({"content": n, "key": key} for n, key in enumerate(order)))
            for order in (keys, keys[::-1]) * 4
        ]
        assert await outcomes(calls) == {"ok": 1, "CONFLICT": 7}
    assert len(await memories(database)) == 200


async def test_the_key_of_an_expired_memory_is_taken_once(crowd, database):
    for number in range(8):
        item = await crowd.one("old", key=f"key {number}")
        await expire_now(database, item["id"])
        calls: list[Awaitable[object]] = [crowd.one(n, key=f"key {number}") for n in range(6)]
        calls.append(expire(database, targets=list(Target)))
        result = await outcomes(calls)
        assert result == {"ok": 2, "CONFLICT": 5}
        assert (await memories(database))[int(item["id"])]["version"] == 2


async def test_no_edge_ever_ends_at_a_tombstone(crowd, database):
    for _ in range(15):
        target, *sources = await crowd.write("target", *(f"source {n}" for n in range(6)))
        link = {"relations": [{"type": "r", "target": target["id"]}]}
        calls: list[Awaitable[object]] = [crowd.update({"id": s["id"], "metadata": link}) for s in sources[:3]]
        calls += [crowd.write({"content": "new", "metadata": link}) for _ in range(3)]
        calls.insert(3, crowd.delete(target["id"]))
        calls.append(crowd.delete(sources[0]["id"]))
        result = await outcomes(calls)
        assert set(result) <= {"ok", "INVALID_INPUT", "NOT_FOUND"}
        assert not {edge for edge in await edges(database) if edge[2] == int(target["id"])}
    await assert_sound(database)


async def test_a_storm_of_crossing_batches_ends_sound(crowd, database, monkeypatch):
    """Updates, relations, deletes and sweeps over the same rows in every order; only expected codes come out."""
    # A deadlock would be retried; here it fails the test, because one order of locks leaves no room for any.
    monkeypatch.setattr("memplane.plugins.postgres.calls._RETRIED", ())
    dice = random.Random(20261130)
    ids = [item["id"] for item in await crowd.write(*(f"memory {n}" for n in range(30)))]

    def pick(count: int) -> list[str]:
        return dice.sample(ids, count)

    def call() -> Awaitable[object]:
        kind = dice.choice(["content", "relations", "relations", "relations", "delete", "write", "sweep", "expire"])
        if kind == "content":
            return crowd.update(*({"id": i, "content": dice.random()} for i in pick(6)))
        if kind == "relations":
            return crowd.update(*(linked(i) for i in pick(3)))
        if kind == "delete" and dice.random() < 0.3:
            return crowd.delete(*pick(2))
        if kind == "expire":
            return crowd.update({"id": pick(1)[0], "metadata": {"expires_at": "2020-01-01T00:00:00Z"}})
        if kind == "sweep":
            return expire(database, targets=list(Target))
        return crowd.write({"content": "more", "metadata": linked("0")["metadata"]})

    def linked(source: str) -> dict[str, object]:
        targets = [i for i in pick(4) if i != source]
        return {"id": source, "metadata": {"relations": [{"type": "r", "target": t} for t in targets]}}

    for _ in range(12):
        result = await outcomes([call() for _ in range(25)])
        assert set(result) <= {"ok", "NOT_FOUND", "INVALID_INPUT"}, result
    await assert_sound(database)
    doubled = await rows(
        database,
        "SELECT target, aggregate_id, family FROM {schema}.memory_outbox WHERE status = 'pending' "
        "GROUP BY 1, 2, 3 HAVING count(*) > 1",
    )
    assert doubled == []


async def test_scopes_do_not_wait_for_each_other(backend, database):
    """A foreign id is not even locked: asking for it cannot hold up its owner."""
    mine = Calls(backend.scoped(ME))
    theirs = Calls(backend.scoped(Scope("other", ME.user)))
    item = await mine.one("mine")
    async with database.transaction() as connection:
        await connection.execute(
            database.sql("SELECT FROM {schema}.long_term_memory WHERE id = $1 FOR UPDATE"), int(item["id"])
        )
        async with asyncio.timeout(5):
            assert await theirs.delete(item["id"]) == []
            with pytest.raises(PluginError, match="NOT_FOUND"):
                await theirs.update({"id": item["id"], "content": "theirs"})
            link = {"relations": [{"type": "r", "target": item["id"]}]}
            with pytest.raises(PluginError, match="INVALID_INPUT"):
                await theirs.write({"content": "x", "metadata": link})
