"""QUERY and GET: filters against an oracle, stable pages, cursors that belong to one query, limits."""

from __future__ import annotations

import base64
import json
import random
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import strategies as st
from tests.plugins.postgres.calls import Calls, expire_now, rows
from tests.plugins.postgres.conftest import ME
from tests.plugins.postgres.properties import holds
from tests.retrieval.test_filters import MEANING
from tests.schema import json_values

from memplane.contracts import Scope
from memplane.errors import PluginError
from memplane.plugins.postgres.order import ORDER_FIELDS
from memplane.plugins.postgres.query import MAX_PAGE_BYTES
from memplane.retrieval.filters import matches, parse_filter
from memplane.schema.times import format_time, parse_time

NAMES = ["a", "b", "n", "state", "list"]
SMALL: Any = st.recursive(
    st.none() | st.booleans() | st.sampled_from([0, 1, -1, 1.5, 10**20, 1e16, "", "a", "B", "é", "\U0001f600", "1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "0"]), inner, max_size=2),
    max_leaves=5,
)
RESERVED = {
    "importance": st.sampled_from([0, 0.25, 1]),
    "category": st.sampled_from(["a", "B", "é"]),
    "tags": st.lists(st.sampled_from(["a", "b", '"']), max_size=3),
    "slot_hint": st.sampled_from(["a", "b"]),
    "expires_at": st.sampled_from(["2900-01-01T00:00:00Z", "2900-01-01T00:00:00.000001Z", "2999-12-31T23:59:59+01:00"]),
}
METADATA = st.fixed_dictionaries({}, optional={**dict.fromkeys(NAMES, SMALL), **RESERVED})

ORDERS = ["$gt", "$gte", "$lt", "$lte"]
PATHS = st.sampled_from([*NAMES, "a.a", "metadata.a.0", "list.0", "metadata.importance", "metadata.tags"])


def field_conditions() -> Any:
    """One condition on one field, with operands that the field accepts."""
    operands = st.sampled_from([0, 1, 1.5, 10**20, 1e16, "", "a", "B", "é", "\U0001f600"])
    anything = SMALL | st.dictionaries(st.just("$eq"), SMALL, min_size=1, max_size=1)
    general = (
        anything
        | st.builds(lambda value: {"$ne": value}, SMALL)
        | st.builds(lambda values: {"$in": values}, st.lists(SMALL, max_size=4))
        | st.builds(lambda value: {"$contains": value}, SMALL)
        | st.builds(lambda value: {"$exists": value}, st.booleans())
    )

    def compared(values: Any) -> Any:
        return st.builds(lambda sign, value: {sign: value}, st.sampled_from(ORDERS), values)

    times = st.sampled_from(["2900-01-01T00:00:00Z", "2900-01-01T01:00:00.000001+01:00", "2000-01-01T00:00:00Z"])
    numbers = st.sampled_from([0, 0.25, 1, 2, 1.5, 10**30, -(10**400)])
    strings = st.sampled_from(["", "a", "B", "é", "k1"])
    ids = st.integers(1, 60).map(str)
    return st.one_of(
        st.tuples(PATHS, general | compared(operands)),
        st.tuples(st.sampled_from(["version", "importance"]), general | numbers | compared(numbers)),
        st.tuples(st.sampled_from(["key", "category", "slot_hint"]), general | strings | compared(strings)),
        st.tuples(st.sampled_from(["createdAt", "updatedAt", "expires_at"]), general | times | compared(times)),
        st.tuples(st.just("id"), general | ids | compared(ids)),
        st.tuples(st.just("tags"), general | st.lists(st.sampled_from(["a", "b"]), max_size=2)),
    ).map(lambda pair: {pair[0]: pair[1]})


FILTERS: Any = st.recursive(
    field_conditions(),
    lambda inner: (
        st.builds(lambda parts: {"$and": parts}, st.lists(inner, max_size=3))
        | st.builds(lambda parts: {"$or": parts}, st.lists(inner, max_size=3))
        | st.builds(lambda part: {"$not": part}, inner)
    ),
    max_leaves=4,
)


async def test_every_filter_means_the_same_in_sql_and_in_memory(store):
    examples: list[dict[str, Any]] = []

    async def collect(drawn: dict[str, Any]) -> None:
        examples.append(drawn)

    await holds(METADATA, collect, examples=60)
    drafts = [{"content": n, "metadata": drawn} for n, drawn in enumerate(examples)]
    drafts += [{"content": "bare"}, {"content": "keyed", "key": "k1"}, {"content": "empty", "metadata": {}}]
    written = await store.write(*drafts)
    await store.update({"id": written[0]["id"], "content": "second version"})
    items = await store.get(*(item["id"] for item in written))

    async def check(document: dict[str, Any]) -> None:
        expected = [item["id"] for item in items if matches(parse_filter(document), item)]
        assert await store.ids(filter=document) == expected

    await holds(FILTERS, check, examples=400)


async def test_any_json_value_is_found_by_equality(store):
    async def check(value: Any) -> None:
        item = await store.one("x", metadata={"v": [value]})
        assert item["id"] in await store.ids(filter={"v": [value]})
        assert item["id"] in await store.ids(filter={"v": {"$contains": value}})
        await store.delete(item["id"])

    await holds(json_values.values, check, examples=100)


async def test_the_table_of_meanings_holds_in_sql(store):
    from tests.retrieval.test_filters import ITEM

    target = {**ITEM["metadata"]}
    item = await store.one("text", key="alpha", metadata=target)
    await store.update({"id": item["id"], "content": 2})
    await store.update({"id": item["id"], "content": 3})
    for document, expected in MEANING:
        if {"id", "createdAt"} & document.keys():
            continue
        assert (item["id"] in await store.ids(filter=document)) is expected, document


async def test_a_filter_cannot_leave_the_scope(backend, store):
    theirs = await Calls(backend.scoped(Scope("other", "them"))).one(
        "x", metadata={"tenant": "tenant", "user_id": "me"}
    )
    mine = await store.one("x", metadata={"tenant": "other"})

    assert await store.ids(filter={"tenant": "other"}) == [mine["id"]]
    assert await store.ids(filter={"$or": [{}, {"id": theirs["id"]}]}) == [mine["id"]]
    assert await store.ids(filter={"$not": {"id": mine["id"]}}) == []


async def test_filters_carry_quotes_as_values(store):
    nasty = "'; DROP TABLE long_term_memory; --"
    item = await store.one("x", metadata={nasty: nasty, "a": 1})

    assert await store.ids(filter={nasty: nasty}) == [item["id"]]
    assert await store.ids(filter={f"metadata.{nasty}": {"$gt": "'"}}) == [item["id"]]


async def fill(store: Calls, database: Any, count: int) -> list[str]:
    """Memories with many ties in every order field."""
    dice = random.Random(7)
    drafts: list[dict[str, Any]] = []
    for number in range(count):
        draft: dict[str, Any] = {"content": number}
        if dice.random() < 0.7:
            draft["metadata"] = {"importance": dice.choice([0, 0.25, 0.5, 1])}
        if dice.random() < 0.5:
            draft["key"] = dice.choice(["a", "B", "é", "\U0001f600", "_"]) + str(number)
        drafts.append(draft)
    items = await store.write(*drafts[: count // 2]) + await store.write(*drafts[count // 2 :])
    await store.update(*({"id": item["id"], "content": "v2"} for item in items if dice.random() < 0.4))
    return [item["id"] for item in items]


def rank(item: Any, field: str) -> tuple[int, Any]:
    value = {
        "id": int(item["id"]),
        "key": item.get("key"),
        "importance": item.get("metadata", {}).get("importance"),
    }.get(field, item.get(field))
    return (1, 0) if value is None else (0, value)


def ordered(items: list[Any], order: list[dict[str, str]]) -> list[str]:
    """The oracle: stable sorts, the last field first; nulls are last whatever the direction."""
    last_desc = bool(order) and order[-1]["direction"] == "desc"
    result = sorted(items, key=lambda item: int(item["id"]), reverse=last_desc)
    for entry in reversed(order):
        desc = entry["direction"] == "desc"
        present = [item for item in result if rank(item, entry["field"])[0] == 0]
        absent = [item for item in result if rank(item, entry["field"])[0] == 1]
        present.sort(key=lambda item: rank(item, entry["field"])[1], reverse=desc)
        result = present + absent
    return [item["id"] for item in result]


ORDER_BY = st.lists(
    st.fixed_dictionaries({"field": st.sampled_from(ORDER_FIELDS), "direction": st.sampled_from(["asc", "desc"])}),
    max_size=3,
    unique_by=lambda entry: entry["field"],
)


async def test_pages_in_any_order_hold_each_memory_once(store, database):
    ids = await fill(store, database, 40)
    items = await store.get(*ids)

    async def check(drawn: tuple[list[dict[str, str]], int]) -> None:
        order, limit = drawn
        seen: list[str] = []
        cursor: dict[str, str] = {}
        while True:
            page = await store.query(limit, orderBy=order, **cursor)
            assert len(page["items"]) <= limit
            seen += [item["id"] for item in page["items"]]
            if "nextCursor" not in page:
                break
            assert len(page["items"]) == limit
            cursor = {"cursor": page["nextCursor"]}
        by_id = next((n for n, entry in enumerate(order) if entry["field"] == "id"), None)
        assert seen == ordered(items, order if by_id is None else order[: by_id + 1])

    await holds(st.tuples(ORDER_BY, st.integers(1, 45)), check, examples=120)


async def test_pages_stay_stable_while_others_write(store):
    items = await store.write(*range(30))
    order = [{"field": "createdAt", "direction": "desc"}]
    first = await store.query(10, orderBy=order)
    await store.write(*range(5))
    await store.delete(items[15]["id"])
    second = await store.query(50, orderBy=order, cursor=first["nextCursor"])

    seen = [item["id"] for item in first["items"] + second["items"]]
    assert seen == [item["id"] for item in reversed(items) if item["id"] != items[15]["id"]]


async def test_the_last_page_has_no_cursor(store):
    assert await store.query() == {"items": []}
    await store.write(1, 2)
    assert "nextCursor" not in await store.query(2)
    assert "nextCursor" in await store.query(1)


async def test_the_largest_filters_fit_into_one_statement(store):
    """PostgreSQL takes 32,767 arguments; more of them would end the connection instead of the call."""
    found = await store.one("x", metadata={"tags": ["a", "b"], "a": {"b": 1}})
    wide = {"$or": [*({".".join(["a"] * 10): {"$lt": n}} for n in range(999)), {"a.b": 1}]}
    lists: list[Any] = [[f"tag {number}"] for number in range(40_000)]
    assert await store.ids(filter=wide) == [found["id"]]
    assert await store.ids(filter={"tags": {"$in": [*lists, ["a", "b"]]}}) == [found["id"]]
    assert await store.ids(filter={"tags": {"$in": [*lists, ["b", "a"], "a", None]}}) == []
    assert await store.ids(filter={"tags": {"$in": []}}) == []


async def test_an_unknown_order_is_unsupported(store):
    for field in ("content", "metadata.x", "createdat", "m.id; --", "x" * 1000):
        with pytest.raises(PluginError) as caught:
            await store.query(orderBy=[{"field": field}])
        assert caught.value.code == "UNSUPPORTED_ORDER"


def forged(cursor: str, **changes: Any) -> str:
    document = json.loads(base64.urlsafe_b64decode(cursor + "=="))
    return base64.urlsafe_b64encode(json.dumps({**document, **changes}).encode()).decode().rstrip("=")


async def test_a_cursor_belongs_to_its_scope_filter_and_order(store, backend):
    await store.write(*range(5))
    other = Calls(backend.scoped(Scope(ME.tenant, "other")))
    input: dict[str, Any] = {"orderBy": [{"field": "createdAt"}], "filter": {"x": {"$exists": False}}}
    cursor = (await store.query(2, **input))["nextCursor"]
    assert len((await store.query(2, **input, cursor=cursor))["items"]) == 2
    assert len((await store.query(9, **input, cursor=cursor))["items"]) == 3, "the limit may change"

    for who, changed in (
        (other, input),
        (store, {**input, "filter": {}}),
        (store, {"orderBy": input["orderBy"]}),
        (store, {**input, "orderBy": [{"field": "createdAt", "direction": "desc"}]}),
        (store, {**input, "orderBy": [{"field": "updatedAt"}]}),
    ):
        with pytest.raises(PluginError) as caught:
            await who.query(2, **changed, cursor=cursor)
        assert caught.value.code == "INVALID_CURSOR"


async def test_no_cursor_makes_a_statement_fail(store):
    await store.write(*({"content": n, "key": f"k{n}", "metadata": {"importance": 0.5}} for n in range(5)))
    order = [{"field": name} for name in ("key", "importance", "createdAt", "id")]
    cursor = (await store.query(2, orderBy=order))["nextCursor"]
    good = json.loads(base64.urlsafe_b64decode(cursor + "=="))["k"]
    bad_values = [
        [*good[:3], 2**63],
        [*good[:3], -1],
        [*good[:3], "1"],
        [*good[:3], True],
        [*good[:3], None],
        ["a\0", *good[1:]],
        ["\ud800", *good[1:]],
        [good[0], "x", *good[2:]],
        [good[0], 10**400, *good[2:]],
        [*good[:2], "yesterday", good[3]],
        [*good[:2], "0001-01-01T00:00:00+14:00", good[3]],
        good[:3],
        "abc",
        None,
    ]
    broken = [forged(cursor, k=values) for values in bad_values]
    broken += [
        forged(cursor, v=2),
        forged(cursor, b="0" * 32),
        "x",
        "é",
        "\ud800",
        "a" * 10_000,
        "bnVsbA",
        "W10",
        "%00",
    ]
    broken += [base64.urlsafe_b64encode(b"[" * 5000).decode(), cursor[:-3]]
    for text in broken:
        with pytest.raises(PluginError) as caught:
            await store.query(2, orderBy=order, cursor=text)
        assert caught.value.code == "INVALID_CURSOR", text

    async def check(text: str) -> None:
        with pytest.raises(PluginError, match="INVALID_CURSOR"):
            await store.query(2, orderBy=order, cursor=text)

    await holds(st.text(min_size=1), check, examples=100)


async def test_a_page_stops_at_its_size_and_goes_on(store):
    size = 2**20 - 100
    written = await store.write(*(chr(97 + n) * size for n in range(20)))

    first = await store.query(10_000)
    assert 10 < len(first["items"]) < 20
    assert sum(len(item["content"]) for item in first["items"]) <= MAX_PAGE_BYTES
    second = await store.query(10_000, cursor=first["nextCursor"])
    assert [item["id"] for item in first["items"] + second["items"]] == [item["id"] for item in written]
    assert "nextCursor" not in second


async def test_expired_and_deleted_memories_are_absent_everywhere(store, database):
    live, expired, deleted = await store.write(
        *({"content": name, "key": name} for name in ("live", "expired", "gone"))
    )
    await expire_now(database, expired["id"])
    await store.delete(deleted["id"])

    assert await store.ids() == [live["id"]]
    found = await store.get(live["id"], expired["id"], deleted["id"], keys=["live", "expired", "gone"])
    assert [item["id"] for item in found] == [live["id"]]


async def test_get_finds_by_id_or_key_within_the_scope(store, backend):
    a, b = await store.write({"content": "a", "key": "a"}, {"content": "b", "key": "b"})
    theirs = await Calls(backend.scoped(Scope("other", ME.user))).one("theirs", key="a")

    assert await store.get(a["id"], theirs["id"], "007", "-1", " 1", "9223372036854775808", keys=["a", "b"]) == [a, b]
    assert await store.get("0", f"0{a['id']}", f"+{a['id']}", f"{a['id']}.0", "１") == []
    assert await store.get(keys=["A", "%", "a "]) == []
    with pytest.raises(PluginError, match=r"INVALID_INPUT: keys\[1\]"):
        await store.get(keys=["a", "b\0"])


async def test_times_order_and_filter_to_the_microsecond(store):
    item = await store.one("x")
    instant = parse_time(item["createdAt"])
    assert instant is not None
    before, after = (format_time(instant + timedelta(microseconds=step)) for step in (-1, 1))

    assert await store.ids(filter={"createdAt": {"$gt": before, "$lt": after}}) == [item["id"]]
    assert await store.ids(filter={"createdAt": item["createdAt"]}) == [item["id"]]
    assert await store.ids(filter={"createdAt": {"$gt": item["createdAt"]}}) == []


async def test_a_page_of_a_large_scope_reads_an_index(store, database):
    await store.write(*range(3000))
    await rows(database, "ANALYZE {schema}.long_term_memory")
    from memplane.plugins.postgres.query import _SCOPED, _page_sql

    statement = _page_sql(_SCOPED, "m.created_at DESC, m.id DESC", "11")
    plan = await rows(database, f"EXPLAIN {statement}".replace("$1", "'tenant'").replace("$2", "'me'"))
    text = "\n".join(row["QUERY PLAN"] for row in plan)
    assert "long_term_memory_created" in text, text
