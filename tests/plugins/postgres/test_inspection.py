"""What operators see of one memory, and what search hydrates."""

from __future__ import annotations

import json

from tests.plugins.postgres.calls import Calls, expire_now
from tests.plugins.postgres.conftest import ME

from memplane.contracts import Scope
from memplane.plugins.postgres import hydrate, memory_state
from memplane.retrieval.filters import parse_filter


async def test_the_state_of_a_memory_is_plain_json(store, database):
    target, source = await store.write("target", {"content": "secret text", "key": "k", "metadata": {"category": "c"}})
    link = {"relations": [{"type": "r", "target": target["id"]}]}
    await store.update({"id": source["id"], "metadata": link})
    await store.delete(target["id"])

    state = await memory_state(database, ME.tenant, source["id"])
    assert state is not None
    assert json.loads(json.dumps(state)) == state
    assert state["memory"]["id"] == source["id"]
    assert (state["memory"]["version"], state["memory"]["edges_version"]) == (2, 2)
    assert state["memory"]["metadata"] == link
    assert "secret text" not in json.dumps(state)
    [edge] = state["edges"]
    assert (edge["source_id"], edge["target_id"], edge["version"]) == (source["id"], target["id"], 2)
    assert edge["deleted_at"] is not None
    versions = [(event["event_type"], event["aggregate_version"], event["status"]) for event in state["events"]]
    assert ("upsert_memory_vector", 2, "pending") in versions
    assert ("upsert_memory_vector", 1, "processed") in versions
    assert [int(event["id"]) for event in state["events"]] == sorted(
        (int(event["id"]) for event in state["events"]), reverse=True
    )

    dead = await memory_state(database, ME.tenant, target["id"])
    assert dead is not None
    assert dead["memory"]["deleted_at"] is not None


async def test_the_state_of_another_tenants_memory_is_absent(store, database):
    item = await store.one("x")

    assert await memory_state(database, "other", item["id"]) is None
    assert await memory_state(database, None, item["id"]) is not None
    for text in ("999", "007", "-1", "x", "9223372036854775808"):
        assert await memory_state(database, ME.tenant, text) is None


async def test_hydrating_keeps_the_order_and_leaves_out_what_is_not_live(store, backend, database):
    a, b, expired, deleted = await store.write(*({"content": n, "metadata": {"n": n}} for n in range(4)))
    theirs = await Calls(backend.scoped(Scope("other", ME.user))).one("theirs")
    await expire_now(database, expired["id"])
    await store.delete(deleted["id"])
    ids = [int(item["id"]) for item in (theirs, b, deleted, a, expired, b)]

    assert await hydrate(database, ME, ids) == [b, a]
    assert await hydrate(database, ME, ids, parse_filter({"n": 0})) == [a]
    assert await hydrate(database, ME, []) == []
