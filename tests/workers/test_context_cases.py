"""CONTEXT: X-01 … X-15."""

# ruff: noqa: E501 - a case is easier to read on one line
from __future__ import annotations

import asyncio

import pytest

from memplane.contracts import CallOptions
from memplane.runtime import DefinitionError, create_runtime, graph
from memplane.signal import Signal
from memplane.workers import (
    ContextError,
    ContextOperationQueue,
    InMemoryContextStore,
    PostgresContextStore,
    create_context,
    create_context_worker,
)

HELLO = {"role": "user", "content": "hello"}
DOCUMENT = {"uri": "urn:document", "mediaType": "text/plain"}


def item(id, content="x", **more):
    return {"id": id, "content": content, **more}


def ids(context):
    return [entry["id"] for entry in context["items"]]


async def refused(code, awaitable, text=""):
    with pytest.raises(ContextError) as caught:
        await awaitable
    assert caught.value.code == code
    assert text in caught.value.message


async def test_x01_a_message_becomes_an_item_with_a_stable_id():
    context = create_context()
    first = (await context.load({"sources": [HELLO]}))["items"][0]
    assert first["id"] == "message:f4f7e767b9a1966921d93f1818bb0238c1633ed715f29a789b4e3a624ab16512"
    assert first["content"] == "hello"
    assert first["metadata"] == {"sourceType": "message", "role": "user"}
    named = {"content": "hello", "name": "ada", "role": "user"}
    second = (await context.load({"sources": [named]}))["items"][0]
    assert second["metadata"] == {"sourceType": "message", "role": "user", "name": "ada"}
    assert second["id"] != first["id"]
    again = (await context.load({"sources": [dict(reversed(named.items()))]}))["items"][0]
    assert again["id"] == second["id"]


async def test_x02_a_reference_becomes_an_item_that_points_to_it():
    (loaded,) = (await create_context().load({"sources": [DOCUMENT]}))["items"]
    assert loaded["id"] == "reference:005e67f496d05c593e1b657d362fe893d1531ca9f8ecc2c6af0232e2dab24ac7"
    assert loaded["source"] == DOCUMENT
    assert loaded["content"] == ({"type": "reference", "reference": DOCUMENT},)


async def test_x03_the_kind_is_decided_by_property():
    sources = [
        {"id": "i", "role": "user", "uri": "urn:x", "content": 1},
        {"role": "user", "uri": "urn:x", "content": 1},
        DOCUMENT,
    ]
    kinds = [i["id"].partition(":")[0] for i in (await create_context().load({"sources": sources}))["items"]]
    assert kinds == ["i", "message", "reference"]


@pytest.mark.parametrize(
    ("policy", "expected"), [("replace", [("a", 3), ("b", 2)]), ("keep-first", [("a", 1), ("b", 2)])]
)
async def test_x04_duplicate_ids_follow_the_policy(policy, expected):
    context = create_context(policy={"duplicate": policy, "maxItems": 2})
    loaded = await context.load({"sources": [item("a", 1), item("b", 2), item("a", 3)]})
    assert [(i["id"], i["content"]) for i in loaded["items"]] == expected


async def test_x04_reject_and_the_final_count():
    rejecting = create_context(policy={"duplicate": "reject"})
    await refused("DUPLICATE_ITEM", rejecting.load({"sources": [item("a"), item("a")]}))
    small = create_context(policy={"maxItems": 1})
    assert ids(await small.load({"sources": [item("a"), item("a")]})) == ["a"]  # counted after merging
    await refused("ITEM_LIMIT_EXCEEDED", small.load({"sources": [item("a"), item("b")]}))


async def test_x05_results_are_deep_snapshots():
    content = {"list": [1]}
    loaded = await create_context().load({"sources": [item("a", content)]})
    content["list"].append(2)
    assert loaded["items"][0]["content"] == {"list": (1,)}
    with pytest.raises(TypeError):
        loaded["items"][0]["content"]["x"] = 1
    with pytest.raises((TypeError, AttributeError)):
        loaded["items"].append(1)


@pytest.mark.parametrize(
    ("input", "message"),
    [
        ({"sources": [None]}, "sources[0] must be an object"),
        ({"sources": ["x"]}, "sources[0] must be an object"),
        ({}, "sources must be an array"),
        ({"sources": {}}, "sources must be an array"),
        (None, "input must be an object"),
        ({"sources": [item("")]}, "sources[0].id must be a nonempty string"),
        ({"sources": [{"id": "a"}]}, "sources[0].content is required"),
        ({"sources": [{"role": "boss", "content": "x"}]}, "sources[0].role must be one of"),
        ({"sources": [{"uri": " "}]}, "sources[0].uri must be a nonempty string"),
        ({"sources": [item("a", metadata=[])]}, "sources[0].metadata must be an object"),
        ({"sources": [item("a", float("nan"))]}, "finite, acyclic JSON"),
        ({"sources": [item("a", object())]}, "finite, acyclic JSON"),
        ({"sources": [], "resolveReferences": 1}, "resolveReferences must be a boolean"),
        ({"sources": [], "context": {"items": []}}, "either context or scope"),
    ],
)
async def test_x06_load_checks_its_input(input, message):
    await refused("INVALID_INPUT", create_context().load(input), message)


async def test_x07_update_removes_then_adds_then_takes_ingress():
    context = create_context()
    given = {"context": {"items": [item("a"), item("b")]}, "removeIds": ["a"], "add": [item("a", "new")],
             "ingress": [{"id": "b", "sourceNode": "MEMORY.SEARCH", "content": "found", "metadata": {"score": 0.9}}]}  # fmt: skip
    updated = await context.update(given)
    assert ids(updated) == ["b", "a"]
    assert updated["items"][0]["metadata"] == {"score": 0.9, "sourceNode": "MEMORY.SEARCH"}
    assert await context.update({**given, "context": updated}) == updated


async def test_x08_missing_removals():
    base = {"context": {"items": [item("a")]}, "removeIds": ["zz"]}
    assert ids(await create_context().update(base)) == ["a"]
    await refused("MISSING_ITEM", create_context(policy={"missingRemoval": "reject"}).update(base))


@pytest.mark.parametrize("node", ["SEARCH", "", "A.", ".B", None, "A B.C"])
async def test_x09_ingress_names_a_qualified_node(node):
    ingress = [{"id": "i", "sourceNode": node, "content": 1}]
    await refused(
        "INVALID_INPUT", create_context().update({"context": {"items": []}, "ingress": ingress}), "qualified Node ID"
    )


async def test_x09_the_reference_of_an_ingress_becomes_the_source():
    ingress = [{"id": "i", "sourceNode": "A.B.C", "content": 1, "reference": DOCUMENT}]
    (updated,) = (await create_context().update({"context": {"items": []}, "ingress": ingress}))["items"]
    assert updated["source"] == DOCUMENT


async def test_x10_limits_of_items_and_bytes():
    context = create_context()
    exactly = "x" * (65536 - 2)
    await context.load({"sources": [item("a", exactly)]})
    await refused("INLINE_LIMIT_EXCEEDED", context.load({"sources": [item("a", exactly + "x")]}))
    await refused("INLINE_LIMIT_EXCEEDED", context.load({"sources": [item("a", "é" * 32768)]}))
    await context.load({"sources": [item("a", exactly + "x", source=DOCUMENT)]})
    part = {"type": "reference", "reference": DOCUMENT}
    await context.load({"sources": [item("a", [exactly + "x", part])]})
    await context.load({"sources": [item(str(n)) for n in range(256)]})
    await refused("ITEM_LIMIT_EXCEEDED", context.load({"sources": [item(str(n)) for n in range(257)]}))
    twice = {"context": {"items": [item("a"), item("a")]}}
    await refused("INVALID_INPUT", context.update(twice), "duplicate item id: a")
    cycle = []
    cycle.append(cycle)
    await refused("INVALID_INPUT", context.load({"sources": [item("a", cycle)]}))


@pytest.mark.parametrize(
    "policy", [{"maxItems": -1}, {"maxItems": 0}, {"duplicate": "odd"}, {"typo": 1}, {"maxInlineBytes": 1.5}, 3]
)
def test_x10_a_policy_is_checked_at_construction(policy):
    with pytest.raises(DefinitionError):
        create_context(policy=policy)


@pytest.fixture(params=["memory", pytest.param("postgres", marks=pytest.mark.slow)])
def make_store(request):
    """Makes a state store of either kind; the PostgreSQL one on a database of this test's own."""
    if request.param == "memory":
        return InMemoryContextStore
    database = request.getfixturevalue("database")

    def make(**options):
        options.pop("max_entries", None)
        return PostgresContextStore(database, **options)

    return make


async def test_x11_state_is_created_read_updated_and_replaced(make_store):
    store = make_store()
    context, scope = create_context(state_store=store), {"sessionId": "s", "turnId": "t"}
    await refused("CONTEXT_NOT_FOUND", context.load({"scope": scope}), "absent or expired")
    await refused("CONTEXT_NOT_FOUND", context.update({"scope": scope, "add": [item("a")]}))
    await context.load({"scope": scope, "sources": [item("a", {"n": 1e16, "z": -0.0, "text": "é\U0001f600"})]})
    assert (await context.load({"scope": scope}))["items"][0]["content"] == {"n": 1e16, "z": 0, "text": "é\U0001f600"}
    assert ids(await context.update({"scope": scope, "add": [item("b")]})) == ["a", "b"]
    assert ids(await context.load({"scope": scope})) == ["a", "b"]
    for other in ({"sessionId": "s"}, {"sessionId": "s", "turnId": "u"}, {"turnId": "t"}):
        await refused("CONTEXT_NOT_FOUND", context.load({"scope": other}))
    before = (await store.get(scope, CallOptions())).version
    selection = await context.select({"scope": scope, "purpose": "infer", "limit": 1})
    assert len(selection["selectedItemIds"]) == 1
    assert (await store.get(scope, CallOptions())).version == before  # SELECT never writes
    assert ids(await context.compress({"scope": scope, "maxItems": 1})) == ["b"]
    assert ids(await context.load({"scope": scope, "sources": []})) == []
    assert ids(await context.load({"scope": scope})) == []


async def test_x11_of_two_concurrent_updates_one_conflicts(make_store):
    store, scope = make_store(), {"sessionId": "s"}

    class Meeting:
        """Lets both read before either writes."""

        def __init__(self):
            self.both = asyncio.Barrier(2)

        async def get(self, scope, options):
            found = await store.get(scope, options)
            await self.both.wait()
            return found

        async def compare_and_set(self, *arguments):
            return await store.compare_and_set(*arguments)

    await create_context(state_store=store).load({"scope": scope, "sources": []})
    context = create_context(state_store=Meeting())
    outcomes = await asyncio.gather(
        *(context.update({"scope": scope, "add": [item(name)]}) for name in ("a", "b")), return_exceptions=True
    )
    (conflict,) = [o for o in outcomes if isinstance(o, ContextError)]
    assert conflict.code == "STATE_CONFLICT"
    assert len((await store.get(scope, CallOptions())).context["items"]) == 1


async def test_x11_expected_versions(make_store):
    store, scope = make_store(), {"sessionId": "s"}
    context = create_context(state_store=store)
    await context.load({"scope": scope, "sources": [item("a")]})
    version = (await store.get(scope, CallOptions())).version
    await context.update({"scope": scope, "add": [item("b")], "expectedVersion": version})
    for stale in (version, "another"):
        for call in (context.update, context.compress, context.load):
            await refused("STATE_CONFLICT", call({"scope": scope, "expectedVersion": stale}))
    await refused("INVALID_INPUT", context.update({"scope": scope, "expectedVersion": 3}))
    for stale in (version, "another", None):
        await refused("STATE_CONFLICT", store.compare_and_set(scope, stale, {"items": ()}, CallOptions()))


async def test_x11_a_version_is_never_used_again_after_expiry(make_store):
    store, scope = make_store(ttl_ms=1), {"sessionId": "s"}
    first = await store.compare_and_set(scope, None, {"items": ()}, CallOptions())
    await asyncio.sleep(0.05)
    assert await store.get(scope, CallOptions()) is None
    await refused("STATE_CONFLICT", store.compare_and_set(scope, first.version, {"items": ()}, CallOptions()))
    second = await store.compare_and_set(scope, None, {"items": ()}, CallOptions())
    assert second.version != first.version


async def test_x12_scope_context_and_nodes_are_checked():
    store = InMemoryContextStore()
    context = create_context(state_store=store)
    await refused("INVALID_INPUT", context.load({"scope": {}, "sources": []}), "identifier")
    await refused("INVALID_INPUT", context.update({"scope": {}}), "identifier")
    for scope in ({"sessionId": ""}, {"sessionId": 1}, {"tenant": "x"}, "s", None):
        await refused("INVALID_INPUT", context.load({"scope": scope}))
    both = {"scope": {"sessionId": "s"}, "context": {"items": []}}
    for call in (context.update, context.compress):
        await refused("INVALID_INPUT", call(both), "either context or scope")
        await refused("INVALID_INPUT", call({}), "either context or scope")
    await refused("INVALID_INPUT", context.select({**both, "purpose": "infer"}), "either context or scope")
    await refused("STATE_STORE_UNAVAILABLE", create_context().load({"scope": {"sessionId": "s"}}))
    await refused("UNKNOWN_NODE", context.execute("CONTEXT.FORGET", {}))
    await refused("UNKNOWN_NODE", context.execute("__class__", {}))


async def test_x12_calls_without_scope_never_touch_the_store():
    class Untouchable:
        def __getattr__(self, name):
            raise AssertionError(name)

    context = create_context(state_store=Untouchable())
    loaded = await context.load({"sources": [item("a")]})
    await context.update({"context": loaded})
    await context.select({"context": loaded, "purpose": "memory"})
    await context.compress({"context": loaded})


async def test_x13_the_memory_store_counts_time_from_the_last_write_and_forgets_the_least_used():
    now = [0.0]
    store = InMemoryContextStore(ttl_ms=1000, max_entries=2, clock=lambda: now[0])
    context = create_context(state_store=store)
    scopes = [{"sessionId": name} for name in "abc"]
    await context.load({"scope": scopes[0], "sources": [item("x")]})
    now[0] = 0.9
    await context.load({"scope": scopes[0]})  # a read does not refresh
    now[0] = 1.0
    await refused("CONTEXT_NOT_FOUND", context.load({"scope": scopes[0]}))
    for scope in scopes[:2]:
        await context.load({"scope": scope, "sources": []})
    await context.load({"scope": scopes[0]})
    await context.load({"scope": scopes[2], "sources": []})
    await refused("CONTEXT_NOT_FOUND", context.load({"scope": scopes[1]}))
    assert ids(await context.load({"scope": scopes[0]})) == []
    for options in ({"ttl_ms": 0}, {"max_entries": 0}, {"ttl_ms": 1.5}, {"ttl_ms": True}):
        with pytest.raises(DefinitionError):
            InMemoryContextStore(**options)


async def test_x13_stored_state_is_a_deep_snapshot():
    store, nested = InMemoryContextStore(), [1]
    await store.compare_and_set({"sessionId": "s"}, None, {"items": [item("a", nested)]}, CallOptions())
    nested.append(2)
    assert (await store.get({"sessionId": "s"}, CallOptions())).context["items"][0]["content"] == (1,)


async def test_x13_a_queue_loses_no_update(make_store):
    scope = {"sessionId": "s"}
    context = create_context(state_store=make_store(), operation_queue=ContextOperationQueue(max_pending=30))
    await context.load({"scope": scope, "sources": []})
    await asyncio.gather(*(context.update({"scope": scope, "add": [item(f"i{n}")]}) for n in range(30)))
    assert ids(await context.load({"scope": scope})) == [f"i{n}" for n in range(30)]


async def test_x13_a_full_queue_refuses_only_its_own_scope():
    queue, gate = ContextOperationQueue(max_pending=2), asyncio.Event()

    async def wait():
        await gate.wait()
        return "done"

    running = [asyncio.create_task(queue.run({"sessionId": "s"}, wait)) for _ in range(2)]
    await asyncio.sleep(0)
    await refused("QUEUE_FULL", queue.run({"sessionId": "s"}, wait))
    other = asyncio.create_task(queue.run({"sessionId": "t"}, wait))
    gate.set()
    assert await asyncio.gather(*running, other) == ["done"] * 3
    assert queue._turns == {}
    with pytest.raises(DefinitionError):
        ContextOperationQueue(max_pending=0)


async def test_x14_references_are_resolved_on_request():
    seen = []

    class Resolver:
        async def resolve(self, reference, options):
            seen.append(reference)
            return {"text": "resolved"}

    context = create_context(reference_resolver=Resolver())
    plain = await context.load({"sources": [DOCUMENT, item("a")]})
    assert seen == []
    resolved = await context.load({"sources": [DOCUMENT, item("a", source=DOCUMENT)], "resolveReferences": True})
    assert seen == [DOCUMENT]
    assert resolved["items"][0] == {**plain["items"][0], "content": {"text": "resolved"}}
    await refused("RESOLVER_UNAVAILABLE", create_context().load({"sources": [], "resolveReferences": True}))


async def test_x14_an_abort_during_resolution_stores_nothing_and_skips_the_rest():
    signal, resolved, store = Signal(), [], InMemoryContextStore()

    class Resolver:
        async def resolve(self, reference, options):
            assert options.signal is signal
            resolved.append(reference["uri"])
            signal.abort(KeyError("stop"))
            return "x"

    context = create_context(reference_resolver=Resolver(), state_store=store)
    sources = [{"uri": "urn:1"}, {"uri": "urn:2"}]
    with pytest.raises(KeyError, match="stop"):
        await context.load(
            {"scope": {"sessionId": "s"}, "sources": sources, "resolveReferences": True}, CallOptions(signal)
        )
    assert resolved == ["urn:1"]
    assert await store.get({"sessionId": "s"}, CallOptions()) is None


async def test_x15_the_worker_exposes_exactly_four_nodes_and_raises_plain_errors():
    runtime = create_runtime(workers=[create_context_worker(policy={"maxItems": 5})])
    (listed,) = runtime.workers()
    assert sorted(listed["capabilities"]) == ["CONTEXT.COMPRESS", "CONTEXT.LOAD", "CONTEXT.SELECT", "CONTEXT.UPDATE"]
    plan = (
        graph("g")
        .node("load", "CONTEXT.LOAD", [], lambda text: {"sources": [{"role": "user", "content": text}]})
        .node("select", "CONTEXT.SELECT", ["load"], lambda _, o: {"context": o["load"], "purpose": "infer"})
    )
    outputs = await runtime.run(plan, "hello")
    assert outputs["select"]["selectedItemIds"] == tuple(ids(outputs["load"]))
    await refused("INVALID_INPUT", runtime.invoke("CONTEXT.LOAD", {}))
    await runtime.close()


async def test_select_prefers_what_the_purpose_needs_and_skips_what_does_not_fit():
    context = create_context()
    items = [
        item("old", "plain words"),
        item("secret", "x", metadata={"private": True}),
        item("goal", "goal", metadata={"currentGoal": True}),
        item("match", "about databases"),
        item("long", "y" * 400, metadata={"priority": 5}),
        item("fact", "f", metadata={"memoryCandidate": True}),
        item("no", "n", metadata={"memoryEligible": False}),
    ]
    infer = await context.select(
        {"context": {"items": items}, "purpose": "infer", "query": "databases?", "limit": 2, "maxTokens": 20}
    )
    assert infer["selectedItemIds"] == ("goal", "match")  # in the order of the context; the long one does not fit
    memory = await context.select({"context": {"items": items}, "purpose": "memory", "limit": 1})
    assert memory["selectedItemIds"] == ("fact",)
    everything = await context.select({"context": {"items": items}, "purpose": "memory"})
    assert everything["selectedItemIds"] == ("old", "goal", "match", "long", "fact")
    for bad in ({"purpose": "odd"}, {"purpose": "infer", "limit": -1}, {"purpose": "infer", "strategy": 1}):
        await refused("INVALID_INPUT", context.select({"context": {"items": []}, **bad}))
    rag = {"context": {"items": []}, "purpose": "infer", "strategy": {"kind": "rag"}}
    await refused("STRATEGY_UNAVAILABLE", context.select(rag))


async def test_compress_keeps_protected_items_and_groups_together():
    context = create_context()
    items = [
        item("system", "s", metadata={"role": "system"}),
        item("call", "c", metadata={"callId": "1"}),
        item("low", "l", metadata={"priority": -1}),
        item("result", "r", metadata={"callId": "1"}),
        item("new", "n"),
    ]
    given = {"items": items}
    assert ids(await context.compress({"context": given, "maxItems": 4})) == ["system", "call", "result", "new"]
    assert ids(await context.compress({"context": given, "maxItems": 3})) == ["system", "new"]
    assert ids(await context.compress({"context": given, "maxTokens": 1})) == ["system"]
    await refused("BUDGET_UNSATISFIABLE", context.compress({"context": given, "maxItems": 0}))
    assert ids(await context.compress({"context": given})) == [i["id"] for i in items]


@pytest.mark.slow
async def test_the_postgres_store_keeps_tenants_apart_and_sweeps_what_expired(database):
    scope, short = {"sessionId": "s"}, PostgresContextStore(database, tenant="short", ttl_ms=1)
    one, two = (PostgresContextStore(database, tenant=name) for name in ("one", "two"))
    await one.compare_and_set(scope, None, {"items": [item("a", "of one")]}, CallOptions())
    assert await two.get(scope, CallOptions()) is None
    await short.compare_and_set(scope, None, {"items": ()}, CallOptions())
    await asyncio.sleep(0.05)
    await two.compare_and_set(scope, None, {"items": ()}, CallOptions())
    async with database.acquire() as connection:
        tenants = await connection.fetch(database.sql("SELECT tenant FROM {schema}.context_state ORDER BY tenant"))
    assert [row["tenant"] for row in tenants] == ["one", "two"]
    odd = {"items": [item("a", "\ud800 and \x00")]}
    await one.compare_and_set({"turnId": "t"}, None, odd, CallOptions())
    assert (await one.get({"turnId": "t"}, CallOptions())).context["items"][0]["content"] == "\ud800 and \x00"
    with pytest.raises(DefinitionError):
        PostgresContextStore(database, tenant="")
