"""UPDATE and DELETE: versions, edges, expiry, and that a batch is all or nothing."""

from __future__ import annotations

import pytest
from tests.plugins.postgres.calls import Calls, assert_sound, edges, expire_now, memories, pending
from tests.plugins.postgres.conftest import ME

from memplane.contracts import Scope
from memplane.errors import PluginError
from memplane.outbox.events import Target
from memplane.plugins.postgres import PostgresBackend

FAR = "2999-01-01T00:00:00.000000Z"


async def refused(call) -> PluginError:
    with pytest.raises(PluginError) as caught:
        await call
    return caught.value


async def test_absent_fields_stay_and_metadata_is_replaced(store, database):
    metadata = {"importance": 0.5, "category": "a", "tags": ["x"], "slot_hint": "s", "expires_at": FAR, "other": 1}
    item = await store.one({"deep": [1]}, key="k", metadata=metadata)

    changed = (await store.update({"id": item["id"], "content": None}))[0]
    assert changed == {**item, "content": None, "version": 2, "updatedAt": changed["updatedAt"]}
    row = (await memories(database))[int(item["id"])]
    assert (row["importance"], row["tags"], row["content"], row["document"]) == (0.5, ["x"], "null", "null")
    await assert_sound(database)

    changed = (await store.update({"id": item["id"], "metadata": {}}))[0]
    assert (changed["content"], changed["metadata"], changed["version"]) == (None, {}, 3)
    row = (await memories(database))[int(item["id"])]
    assert [row[c] for c in ("importance", "category", "tags", "slot_hint", "expires_at")] == [None] * 5
    assert await store.get(keys=["k"]) == [changed]
    assert changed["updatedAt"] > changed["createdAt"] == item["createdAt"]
    await assert_sound(database)


async def test_a_string_may_become_a_document_and_back(store, database):
    item = await store.one("text")
    for content in ({"a": 1}, "text again", ["b"]):
        await store.update({"id": item["id"], "content": content})
        assert (await store.get(item["id"]))[0]["content"] == content
        await assert_sound(database)


async def test_a_batch_updates_each_in_its_own_way(store, database):
    first, second, third = await store.write("1", {"content": "2", "metadata": {"a": 1}}, "3")

    result = await store.update(
        {"id": third["id"], "content": "three"},
        {"id": first["id"], "metadata": {"b": 2}},
        {"id": second["id"], "content": [2], "metadata": {}},
    )

    assert [item["id"] for item in result] == [third["id"], first["id"], second["id"]]
    assert [item["content"] for item in result] == ["three", "1", [2]]
    assert [item.get("metadata") for item in result] == [None, {"b": 2}, {}]
    assert await store.get(*(item["id"] for item in result)) == sorted(result, key=lambda item: int(item["id"]))
    await assert_sound(database)


@pytest.mark.parametrize(
    "kind", ["absent", "007", "-1", " 1", "9223372036854775808", "1.0", "deleted", "expired", "foreign"]
)
async def test_an_id_that_is_not_there_fails_the_batch(store, backend, database, kind):
    good = await store.one("good")
    bad = kind
    if kind == "absent":
        bad = "999"
    elif kind == "foreign":
        bad = (await Calls(backend.scoped(Scope("other", ME.user))).one("theirs"))["id"]
    elif kind in ("deleted", "expired"):
        bad = (await store.one("x"))["id"]
        await (store.delete(bad) if kind == "deleted" else expire_now(database, bad))
    before = await memories(database), await pending(database)

    error = await refused(store.update({"id": good["id"], "content": "new"}, {"id": bad, "content": "new"}))

    assert (error.code, repr(bad) in error.safe_message) == ("NOT_FOUND", True)
    assert (await memories(database), await pending(database)) == before


async def test_another_version_is_a_conflict_that_names_the_id(store, database):
    first, second = await store.write("1", "2")
    await store.update({"id": second["id"], "content": "2b"})
    before = await memories(database)

    error = await refused(
        store.update(
            {"id": first["id"], "content": "x", "expectedVersion": 1},
            {"id": second["id"], "content": "x", "expectedVersion": 1},
        )
    )
    assert (error.code, repr(second["id"]) in error.safe_message) == ("CONFLICT", True)

    versions = {first["id"]: 1, second["id"]: 1}
    error = await refused(store.delete(first["id"], second["id"], versions=versions))
    assert (error.code, repr(second["id"]) in error.safe_message) == ("CONFLICT", True)
    assert await memories(database) == before

    versions[second["id"]] = 2
    assert await store.delete(first["id"], second["id"], versions=versions) == [first["id"], second["id"]]


@pytest.mark.parametrize("version", [0, -1, "1", True, None, 1.5, float("nan"), 1e300])
async def test_an_expected_version_is_a_positive_integer(store, version):
    item = await store.one("x")

    error = await refused(store.update({"id": item["id"], "content": 1, "expectedVersion": version}))
    assert (error.code, "expectedVersion" in error.safe_message) == ("INVALID_INPUT", True)
    error = await refused(store.delete(item["id"], versions={item["id"]: version}))
    assert (error.code, "expectedVersions" in error.safe_message) == ("INVALID_INPUT", True)


async def test_versions_can_be_made_mandatory(database):
    backend = PostgresBackend(database, targets=[Target.MILVUS], require_expected_version=True)
    store = Calls(backend.scoped(ME))
    item = await store.one("x")

    error = await refused(store.update({"id": item["id"], "content": 1}))
    assert (error.code, "expectedVersion" in error.safe_message) == ("INVALID_INPUT", True)
    error = await refused(store.delete(item["id"]))
    assert (error.code, "expectedVersions" in error.safe_message) == ("INVALID_INPUT", True)
    await store.update({"id": item["id"], "content": 1, "expectedVersion": 1})
    assert await store.delete(item["id"], versions={item["id"]: 2}) == [item["id"]]


async def test_edges_follow_the_relations_and_version_by_themselves(store, database):
    a, b, source = await store.write("a", "b", "source")
    number = int(source["id"])

    async def relate(*pairs: tuple[str, str]) -> None:
        relations = [{"type": kind, "target": target} for kind, target in pairs]
        await store.update({"id": source["id"], "metadata": {"relations": relations}})
        await assert_sound(database)

    async def versions() -> dict[tuple[str, int], tuple[int, bool]]:
        from tests.plugins.postgres.calls import rows

        found = await rows(database, "SELECT * FROM {schema}.memory_edge WHERE source_id = $1", number)
        return {(r["type"], r["target_id"]): (r["version"], r["deleted_at"] is None) for r in found}

    await relate(("x", a["id"]), ("x", b["id"]))
    assert await versions() == {("x", int(a["id"])): (1, True), ("x", int(b["id"])): (1, True)}
    await relate(("x", b["id"]), ("y", b["id"]))
    assert await versions() == {
        ("x", int(a["id"])): (2, False),
        ("x", int(b["id"])): (1, True),
        ("y", int(b["id"])): (2, True),
    }
    await relate(("x", b["id"]), ("y", b["id"]))
    await store.update({"id": source["id"], "content": "edges stay"})
    assert (await memories(database))[number]["edges_version"] == 2
    await relate(("x", a["id"]))
    assert await versions() == {
        ("x", int(a["id"])): (3, True),
        ("x", int(b["id"])): (3, False),
        ("y", int(b["id"])): (3, False),
    }


async def test_an_edges_event_goes_out_only_when_edges_change(store, database):
    a, source = await store.write("a", "source")
    link = {"relations": [{"type": "x", "target": a["id"]}]}
    event = (int(source["id"]), "upsert_memory_graph_edges", 2)

    await store.update({"id": source["id"], "metadata": link})
    assert event in await pending(database)
    await store.update({"id": source["id"], "metadata": {**link, "more": 1}})
    assert event in await pending(database), "the older event stands for the edges"
    assert (int(source["id"]), "upsert_memory_graph_node", 3) in await pending(database)


async def test_a_memory_cannot_relate_to_itself(store):
    item = await store.one("x")
    link = {"relations": [{"type": "x", "target": item["id"]}]}

    error = await refused(store.update({"id": item["id"], "metadata": link}))

    assert error.code == "INVALID_INPUT"
    assert error.safe_message.startswith("memories[0].metadata.relations[0].target ")


async def test_relations_may_point_at_a_memory_of_the_same_batch(store, database):
    a, b = await store.write("a", "b")
    await store.update(
        {"id": a["id"], "metadata": {"relations": [{"type": "next", "target": b["id"]}]}},
        {"id": b["id"], "metadata": {"relations": [{"type": "next", "target": a["id"]}]}},
    )

    assert await edges(database) == {(int(a["id"]), "next", int(b["id"])), (int(b["id"]), "next", int(a["id"]))}
    assert await store.delete(a["id"], b["id"]) == [a["id"], b["id"]]
    assert await edges(database) == set()
    await assert_sound(database)


async def test_deleting_removes_edges_at_both_ends(store, database):
    outer, middle, inner = await store.write("outer", "middle", "inner")
    for source, target in ((outer, middle), (middle, inner)):
        await store.update({"id": source["id"], "metadata": {"relations": [{"type": "r", "target": target["id"]}]}})

    assert await store.delete(middle["id"]) == [middle["id"]]

    assert await edges(database) == set()
    waiting = await pending(database)
    assert (int(middle["id"]), "delete_memory_vector", 3) in waiting
    assert (int(middle["id"]), "delete_memory_graph_node", 3) in waiting
    assert (int(middle["id"]), "delete_memory_graph_edges", 3) in waiting
    assert (int(middle["id"]), "invalidate_ltm_cache", 3) in waiting
    assert (int(outer["id"]), "upsert_memory_graph_edges", 2) in waiting
    held = await memories(database)
    assert held[int(outer["id"])]["edges_version"] == 2
    assert held[int(outer["id"])]["version"] == 2, "the memory itself did not change"
    assert held[int(inner["id"])]["version"] == 1
    await assert_sound(database)
    kept = (await store.get(outer["id"]))[0]["metadata"]["relations"]
    assert kept == [{"type": "r", "target": middle["id"]}], "metadata stays as written"


async def test_a_tombstone_is_a_new_version_with_its_own_hash(store, database):
    item = await store.one("x", metadata={"importance": 0.25})
    live = (await memories(database))[int(item["id"])]

    assert await store.delete(item["id"]) == [item["id"]]

    dead = (await memories(database))[int(item["id"])]
    assert dead["version"] == 2
    assert dead["content_hash"] != live["content_hash"]
    assert dead["deleted_at"] == dead["updated_at"] >= live["updated_at"]
    assert dead["changed_xid"] > live["changed_xid"]
    await assert_sound(database)


async def test_delete_reports_what_it_deleted_in_the_order_asked(store, backend, database):
    a, b, c = await store.write("a", "b", "c")
    theirs = await Calls(backend.scoped(Scope(ME.tenant, "other"))).one("theirs")
    await expire_now(database, b["id"])

    asked = [c["id"], "999", b["id"], theirs["id"], "007", "x\0", a["id"]]
    assert await store.delete(*asked) == [c["id"], a["id"]]
    assert await store.delete(*asked) == []
    assert await Calls(backend.scoped(Scope(ME.tenant, "other"))).get(theirs["id"]) == [theirs]


async def test_expected_versions_must_belong_to_ids(store):
    item = await store.one("x")

    error = await refused(store.delete(item["id"], versions={"5": 1}))
    assert error.code == "INVALID_INPUT"
    assert await store.delete("999", item["id"], versions={"999": 3, item["id"]: 1}) == [item["id"]]


async def test_the_same_id_twice_is_refused(store):
    item = await store.one("x")

    error = await refused(store.update({"id": item["id"], "content": 1}, {"id": item["id"], "content": 2}))
    assert error.code == "INVALID_INPUT"


async def test_large_batches_keep_their_order_and_hashes(store, database):
    items = await store.write(*({"content": f"memory {n}", "metadata": {"n": n}} for n in range(1200)))
    assert [item["metadata"]["n"] for item in items] == list(range(1200))
    assert len({item["id"] for item in items}) == 1200

    updated = await store.update(*({"id": item["id"], "content": {"n": n}} for n, item in enumerate(reversed(items))))
    assert [item["content"]["n"] for item in updated] == list(range(1200))
    assert await store.delete(*(item["id"] for item in items)) == [item["id"] for item in items]
    await assert_sound(database)
