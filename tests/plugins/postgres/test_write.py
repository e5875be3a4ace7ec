"""WRITE: what is stored, what is refused, and that a batch is all or nothing."""

from __future__ import annotations

from hashlib import sha256

import pytest
from tests.plugins.postgres.calls import Calls, assert_sound, edges, expire_now, memories, pending, rows
from tests.plugins.postgres.conftest import ME

from memplane.errors import PluginError
from memplane.outbox.events import Target
from memplane.plugins.postgres import PostgresBackend, expire
from memplane.schema.times import parse_time


async def refused(call) -> PluginError:
    with pytest.raises(PluginError) as caught:
        await call
    return caught.value


async def test_items_come_back_as_they_were_written(store, database):
    written = await store.write(
        {"content": "plain", "key": "k", "metadata": {"a": [1, {"b": None}]}},
        {"content": {"z": 1e16, "a": -0.0}},
        {"content": None, "metadata": {}},
        {"content": "null"},
        {"content": 7},
    )

    assert [item["content"] for item in written] == ["plain", {"z": 10**16, "a": 0.0}, None, "null", 7]
    assert "key" not in written[1]
    assert "metadata" not in written[1]
    assert written[2]["metadata"] == {}
    assert all(item["version"] == 1 and item["createdAt"] == item["updatedAt"] for item in written)
    assert all(parse_time(item["createdAt"]) and item["createdAt"].endswith("Z") for item in written)
    assert await store.get(*(item["id"] for item in written)) == written
    assert await store.get(keys=["k"]) == written[:1]
    await assert_sound(database)


async def test_columns_hold_text_and_original(store, database):
    item = await store.one({"b": "汉字", "a": 1})

    row = (await memories(database))[int(item["id"])]
    assert row["content"] == '{"a":1,"b":"汉字"}'
    assert row["document"] == '{"a": 1, "b": "汉字"}'
    assert row["text_hash"] == sha256(row["content"].encode()).digest()
    plain = await store.one("just text")
    assert (await memories(database))[int(plain["id"])]["document"] is None


async def test_reserved_metadata_fills_the_columns_and_stays_as_written(store, database):
    target = await store.one("target")
    metadata = {
        "importance": 1,
        "category": "fact",
        "tags": ['quo"te', "back\\slash", "NULL", "comma,", "汉字", " "],
        "slot_hint": "profile",
        "expires_at": "2999-01-01T02:00:00+02:00",
        "relations": [{"type": "about", "target": target["id"], "note": "kept"}],
    }
    item = await store.one("x", metadata=metadata)

    assert item["metadata"] == metadata
    assert (await store.get(item["id"]))[0]["metadata"] == metadata
    row = (await memories(database))[int(item["id"])]
    assert (row["importance"], row["category"], row["slot_hint"]) == (1.0, "fact", "profile")
    assert row["tags"] == metadata["tags"]
    assert row["expires_at"] == parse_time("2999-01-01T00:00:00Z")
    assert await edges(database) == {(int(item["id"]), "about", int(target["id"]))}
    assert row["edges_version"] == 1
    absent = (await memories(database))[int(target["id"])]
    columns = ("importance", "category", "tags", "slot_hint", "expires_at")
    assert all(absent[column] is None for column in columns)
    await assert_sound(database)


@pytest.mark.parametrize(
    ("metadata", "field"),
    [
        ({"importance": 1.5}, "importance"),
        ({"importance": True}, "importance"),
        ({"importance": "0.5"}, "importance"),
        ({"importance": None}, "importance"),
        ({"category": ""}, "category"),
        ({"category": 3}, "category"),
        ({"category": "x" * 257}, "category"),
        ({"tags": "a"}, "tags"),
        ({"tags": ["a", 1]}, "tags[1]"),
        ({"tags": ["a"] * 257}, "tags"),
        ({"slot_hint": []}, "slot_hint"),
        ({"expires_at": "tomorrow"}, "expires_at"),
        ({"expires_at": "2030-01-01T00:00:00"}, "expires_at"),
        ({"expires_at": "2030-02-30T00:00:00Z"}, "expires_at"),
        ({"expires_at": "0001-01-01T00:00:00+14:00"}, "expires_at"),
        ({"relations": {}}, "relations"),
        ({"relations": [1]}, "relations[0]"),
        ({"relations": [{"target": "1"}]}, "relations[0].type"),
        ({"relations": [{"type": "x"}]}, "relations[0].target"),
        ({"relations": [{"type": "x", "target": 1}]}, "relations[0].target"),
        ({"relations": [{"type": "x", "target": "1"}, {"type": "x", "target": "1"}]}, "relations[1]"),
        ({"relations": [{"type": "x", "target": str(i)} for i in range(1, 258)]}, "relations"),
        ({"relations": [{"type": "x", "target": "007"}]}, "relations[0].target"),
        ({"relations": [{"type": "x", "target": "9223372036854775808"}]}, "relations[0].target"),
        ({"x": "a\0"}, ""),
        ({"x": "y" * (64 * 1024)}, ""),
    ],
)
async def test_bad_metadata_names_its_field_and_stores_nothing(store, database, metadata, field):
    error = await refused(store.write("good", {"content": "x", "metadata": metadata}))

    assert error.code == "INVALID_INPUT"
    assert error.safe_message.startswith(f"memories[1].metadata{'.' if field else ''}{field}")
    assert await memories(database) == {}


@pytest.mark.parametrize(
    ("draft", "field"),
    [
        ({"content": "a\0b"}, "content"),
        ({"content": "\ud800"}, "content"),
        ({"content": {"\0": 1}}, "content"),
        ({"content": float("nan")}, "content"),
        ({"content": "x" * 2**20}, "content"),
        ({"content": '"' * (2**19)}, "content"),
        ({"content": "x", "key": "k\0"}, "key"),
        ({"content": "x", "key": "\udc00"}, "key"),
        ({"content": "x", "key": "k" * 513}, "key"),
    ],
    ids=range(9),
)
async def test_bad_content_and_keys_name_their_field(store, database, draft, field):
    error = await refused(store.write("good", draft))

    assert error.code == "INVALID_INPUT"
    assert error.safe_message.startswith(f"memories[1].{field} ")
    assert await memories(database) == {}


async def test_the_largest_values_fit(store, database):
    key, tag, category = "\U0001f600" * 512, "\U0001f600" * 256, "\U0001f601" * 256
    content = "x" * (2**20 - 2)
    metadata = {"tags": [tag], "category": category, "x": "y" * 60_000}
    item = await store.one(content, key=key, metadata=metadata)

    assert await store.get(keys=[key]) == [item]
    assert item["content"] == content
    await assert_sound(database)


async def test_the_longest_scope_and_key_fit_the_index(backend, database):
    import os

    from memplane.contracts import Scope

    scope = Scope(os.urandom(128).hex(), os.urandom(128).hex())
    store = Calls(backend.scoped(scope))
    key = "".join(chr(0x10000 + number) for number in os.urandom(512))
    await store.one("x", key=key)

    assert len(await store.get(keys=[key])) == 1


async def test_metadata_cannot_touch_the_scope(store, database):
    item = await store.one("x", metadata={"tenant": "other", "user_id": "root", "id": "5", "version": 9, "key": "k"})

    row = (await memories(database))[int(item["id"])]
    assert (row["tenant"], row["user_id"], row["version"], row["key"]) == (ME.tenant, ME.user, 1, None)
    assert item["metadata"]["tenant"] == "other"


async def test_a_taken_key_is_a_conflict_and_nothing_is_stored(store, database):
    await store.one("first", key="taken")
    before = await memories(database), await pending(database)

    error = await refused(store.write({"content": "a", "key": "free"}, {"content": "b", "key": "taken"}, "c"))

    assert error.code == "CONFLICT"
    assert "'taken'" in error.safe_message
    assert (await memories(database), await pending(database)) == before


async def test_one_key_twice_in_a_batch_is_a_conflict(store, database):
    error = await refused(store.write({"content": 1, "key": "k"}, {"content": 2, "key": "k"}))

    assert (error.code, "'k'" in error.safe_message) == ("CONFLICT", True)
    assert await memories(database) == {}


async def test_a_deleted_memory_frees_its_key(store):
    first = await store.one("first", key="k")
    await store.delete(first["id"])
    second = await store.one("second", key="k")

    assert second["id"] != first["id"]
    assert await store.get(first["id"], keys=["k"]) == [second]


async def test_an_expired_holder_of_a_key_becomes_a_tombstone(store, database):
    source = await store.one("source")
    holder = await store.one("old", key="k", metadata={"expires_at": "2999-01-01T00:00:00Z"})
    link = {"relations": [{"type": "about", "target": holder["id"]}]}
    await store.update({"id": source["id"], "metadata": link})
    await expire_now(database, holder["id"])
    await rows(database, "UPDATE {schema}.memory_outbox SET status = 'processed' WHERE status = 'pending'")

    new = await store.one("new", key="k", metadata={"relations": [{"type": "after", "target": source["id"]}]})

    old = (await memories(database))[int(holder["id"])]
    assert old["deleted_at"] is not None
    assert old["version"] == 2
    assert await edges(database) == {(int(new["id"]), "after", int(source["id"]))}
    assert await store.get(keys=["k"]) == [new]
    waiting = await pending(database)
    assert {
        (int(holder["id"]), "delete_memory_vector", 2),
        (int(holder["id"]), "delete_memory_graph_node", 2),
    } <= waiting
    assert (int(source["id"]), "upsert_memory_graph_edges", 2) in waiting
    assert (int(source["id"]), "upsert_memory_vector", 2) not in waiting


async def test_a_live_holder_beside_an_expired_one_changes_nothing(store, database):
    expired, live = await store.write({"content": 1, "key": "expired"}, {"content": 2, "key": "live"})
    await expire_now(database, expired["id"])
    before = await memories(database)

    error = await refused(store.write({"content": 3, "key": "expired"}, {"content": 4, "key": "live"}))

    assert (error.code, "'live'" in error.safe_message) == ("CONFLICT", True)
    assert await memories(database) == before
    assert [item["id"] for item in await store.get(live["id"])] == [live["id"]]


@pytest.mark.parametrize("kind", ["absent", "deleted", "expired", "foreign"])
async def test_a_relation_needs_a_live_memory_of_the_scope(store, backend, database, kind):
    from memplane.contracts import Scope

    target = {"id": "999"}
    if kind == "foreign":
        target = await Calls(backend.scoped(Scope(ME.tenant, "someone else"))).one("x")
    elif kind != "absent":
        target = await store.one("x", metadata={"expires_at": "2999-01-01T00:00:00Z"})
        await (store.delete(target["id"]) if kind == "deleted" else expire_now(database, target["id"]))
    fine = await store.one("fine")
    relations = [{"type": "a", "target": fine["id"]}, {"type": "b", "target": target["id"]}]

    error = await refused(store.write("first", {"content": "x", "metadata": {"relations": relations}}))

    assert error.code == "INVALID_INPUT"
    assert error.safe_message.startswith("memories[1].metadata.relations[1].target ")
    assert await edges(database, live=False) == set()


async def test_every_write_leaves_its_events(store, database):
    first = int((await store.one("x"))["id"])
    second = int((await store.one("y", metadata={"relations": [{"type": "r", "target": str(first)}]}))["id"])

    kinds = ("upsert_memory_vector", "upsert_memory_graph_node", "invalidate_ltm_cache")
    expected = {(number, kind, 1) for number in (first, second) for kind in kinds}
    assert await pending(database) == expected | {(second, "upsert_memory_graph_edges", 1)}


async def test_only_enabled_targets_get_events(database):
    store = Calls(PostgresBackend(database, targets={Target.MILVUS}).scoped(ME))
    item = await store.one("x")

    assert await pending(database) == {(int(item["id"]), "upsert_memory_vector", 1)}


@pytest.mark.parametrize("table", ["memory_outbox", "memory_edge"])
async def test_a_failing_insert_of_events_or_edges_rolls_everything_back(store, database, table):
    target, victim = await store.write("target", {"content": "victim", "key": "victim"})
    await rows(
        database,
        "CREATE FUNCTION {schema}.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$",
    )
    await rows(
        database, f"CREATE TRIGGER refuse BEFORE INSERT ON {{schema}}.{table} EXECUTE FUNCTION {{schema}}.refuse()"
    )
    before = await memories(database), await edges(database, live=False), await pending(database)
    link = {"relations": [{"type": "r", "target": target["id"]}]}

    for call in (
        store.write("plain", {"content": "linked", "metadata": link}),
        store.update({"id": victim["id"], "content": "new", "metadata": link}),
        *([store.delete(victim["id"])] if table == "memory_outbox" else []),
    ):
        with pytest.raises(Exception, match="no"):
            await call

    assert (await memories(database), await edges(database, live=False), await pending(database)) == before


async def test_the_sweep_buries_what_is_due_with_its_edges(store, database):
    source, due, later = await store.write(
        "source", "due", {"content": 1, "metadata": {"expires_at": "2999-01-01T00:00:00Z"}}
    )
    link = {"relations": [{"type": "about", "target": due["id"]}]}
    await store.update({"id": source["id"], "metadata": link})
    await expire_now(database, due["id"])

    assert await expire(database, targets=list(Target)) == 1
    assert await expire(database, targets=list(Target)) == 0

    held = await memories(database)
    assert [held[int(item["id"])]["deleted_at"] is not None for item in (source, due, later)] == [False, True, False]
    assert await edges(database) == set()
    assert (int(due["id"]), "delete_memory_vector", 2) in await pending(database)


async def test_the_sweep_is_bounded_and_covers_all_scopes(backend, database):
    from memplane.contracts import Scope

    for user in "abc":
        item = await Calls(backend.scoped(Scope("t", user))).one("x")
        await expire_now(database, item["id"])

    assert [await expire(database, targets=[], limit=2) for _ in range(3)] == [2, 1, 0]
