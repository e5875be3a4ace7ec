"""Cases M-01 to M-23: the envelope, GET and QUERY."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from tests.nodes.fakes import CrudStore, SearchingStore

from memplane.errors import NodeFailed
from memplane.nodes import create_memory

BACKEND_OUTPUT = ("INVALID_BACKEND_OUTPUT", "MEMORY backend returned an invalid result")

BAD_ROWS: list[Any] = [
    None,
    "row",
    [],
    {},
    {"id": "1"},
    {"content": 1},
    {"id": "", "content": 1},
    {"id": 1, "content": 1},
    {"id": None, "content": 1},
    {"id": "1", "content": 1, "key": ""},
    {"id": "1", "content": 1, "key": None},
    {"id": "1", "content": 1, "key": 5},
    {"id": "1", "content": 1, "metadata": None},
    {"id": "1", "content": 1, "metadata": []},
    {"id": "1", "content": 1, "metadata": "x"},
]


def row(id: str, key: str | None = None, **extra: Any) -> dict[str, Any]:
    return {"id": id, "content": f"content of {id}", **({} if key is None else {"key": key}), **extra}


def fault(result: Any) -> tuple[str, str]:
    assert result.status == "failed"
    assert result.output is None
    return (result.error.code, result.error.message)


def invalid(message: str) -> tuple[str, str]:
    return ("INVALID_INPUT", message)


# --- the envelope


async def test_m01_success_and_failure_have_exactly_their_fields() -> None:
    store = CrudStore(write=lambda input, options: [row("1")])
    good = await create_memory(store=store).write({"memories": [{"content": 1}]})
    assert good.as_wire() == {
        "executionId": good.execution_id,
        "node": "MEMORY.WRITE",
        "status": "success",
        "output": [row("1")],
    }
    bad = await create_memory(store=store).write({})
    assert bad.as_wire() == {
        "executionId": bad.execution_id,
        "node": "MEMORY.WRITE",
        "status": "failed",
        "error": {"code": "INVALID_INPUT", "message": "memories must be an array"},
    }
    assert good.unwrap() == [row("1")]
    with pytest.raises(NodeFailed) as caught:
        bad.unwrap()
    assert (caught.value.code, caught.value.message) == invalid("memories must be an array")


async def test_m02_execution_ids_are_distinct_uuids() -> None:
    memory = create_memory(store=CrudStore())
    first, second = await memory.get({"ids": []}), await memory.get({"ids": []})
    assert first.execution_id != second.execution_id
    assert UUID(first.execution_id).version == 4


@pytest.mark.parametrize("node", ["MEMORY.RETRIEVE", "toString", "__proto__", "", "memory.get", "__class__"])
async def test_m03_unknown_nodes(node: str) -> None:
    store = SearchingStore()
    result = await create_memory(store=store).execute(node, {})
    assert fault(result) == ("UNKNOWN_NODE", "Unknown MEMORY node")
    assert result.node == node
    assert store.calls == []


async def test_m03_a_node_that_is_no_string() -> None:
    result = await create_memory(store=CrudStore()).execute([], {})  # type: ignore[arg-type]
    assert fault(result)[0] == "UNKNOWN_NODE"


async def test_m04_nothing_is_raised_not_even_for_synchronous_plugin_exceptions() -> None:
    class Broken:
        def get(self, input: Any, options: Any) -> Any:
            raise RuntimeError("at once, not awaited")

        async def query(self, input: Any, options: Any) -> Any:
            raise RuntimeError("awaited")

        write = None

    memory = create_memory(store=Broken())  # type: ignore[arg-type]
    expected = ("MEMORY_BACKEND_ERROR", "Memory backend operation failed")
    assert fault(await memory.get({"ids": ["1"]})) == expected
    assert fault(await memory.query({})) == expected
    assert fault(await memory.write({"memories": [{"content": 1}]})) == expected
    assert fault(await memory.delete({"ids": ["1"]})) == expected


async def test_m04_a_plugin_method_may_be_an_ordinary_function() -> None:
    class Plain:
        def get(self, input: Any, options: Any) -> Any:
            return [row("1")]

    result = await create_memory(store=Plain()).get({"ids": ["1"]})  # type: ignore[arg-type]
    assert result.output == [row("1")]


# --- GET


async def test_m05_get_requires_a_selector() -> None:
    assert fault(await create_memory(store=CrudStore()).get({})) == invalid("GET requires ids or keys")


@pytest.mark.parametrize("value", [None, [], "x", 1, True])
@pytest.mark.parametrize("node", ["GET", "QUERY", "SEARCH", "WRITE", "UPDATE", "DELETE"])
async def test_m05_the_input_must_be_an_object(value: Any, node: str) -> None:
    result = await create_memory(store=SearchingStore()).execute(f"MEMORY.{node}", value)
    assert fault(result) == invalid("input must be an object")


@pytest.mark.parametrize("field", ["ids", "keys"])
@pytest.mark.parametrize("other", [{}, {"ids": ["1"]}, {"keys": ["1"]}])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([""], "must be a nonempty string"),
        ([1], "must be a nonempty string"),
        (["a", None], "must be a nonempty string"),
        ("a", "must be an array"),
        (None, "must be an array"),
        ({}, "must be an array"),
    ],
)
async def test_m06_selectors_are_arrays_of_nonempty_strings(field: str, other: Any, value: Any, message: str) -> None:
    store = CrudStore()
    assert fault(await create_memory(store=store).get({**other, field: value})) == invalid(f"{field} {message}")
    assert store.calls == []


async def test_m07_a_blank_id_passes() -> None:
    store = CrudStore(get=[])
    assert (await create_memory(store=store).get({"ids": [" "]})).output == []
    assert store.inputs("get") == [{"ids": [" "], "keys": []}]


@pytest.mark.parametrize("value", [{"ids": []}, {"keys": []}, {"ids": [], "keys": []}])
async def test_m08_empty_selectors_are_answered_locally(value: Any) -> None:
    store = CrudStore()
    result = await create_memory(store=store).get(value)
    assert (result.status, result.output, store.calls) == ("success", [], [])


async def test_m09_get_deduplicates() -> None:
    rows = [row("A", "a"), row("B", "b")]
    store = CrudStore(get=lambda input, options: rows[::-1])
    given = {"ids": ["A", "A", "missing"], "keys": ["b", "a", "b"]}
    result = await create_memory(store=store).get(given)
    assert store.inputs("get") == [{"ids": ["A", "missing"], "keys": ["b", "a"]}]
    assert result.output == rows
    assert given == {"ids": ["A", "A", "missing"], "keys": ["b", "a", "b"]}


@pytest.mark.parametrize(
    ("given", "seen"),
    [({"ids": ["1"]}, {"ids": ["1"], "keys": []}), ({"keys": ["k"]}, {"ids": [], "keys": ["k"]})],
)
async def test_m10_the_store_sees_both_selectors(given: Any, seen: Any) -> None:
    store = CrudStore(get=[])
    await create_memory(store=store).get(given)
    assert store.inputs("get") == [seen]


async def test_m11_ids_first_then_keys_and_a_record_keeps_its_first_slot() -> None:
    store = CrudStore(get=[row("1", "k1"), row("2"), row("3", "k3")])
    result = await create_memory(store=store).get({"ids": ["2", "1"], "keys": ["k3", "k1"]})
    assert [item["id"] for item in result.unwrap()] == ["2", "1", "3"]


async def test_m12_rows_that_were_not_asked_for_are_dropped() -> None:
    store = CrudStore(get=[row("9", "other"), row("1")])
    assert (await create_memory(store=store).get({"ids": ["1"], "keys": ["k"]})).output == [row("1")]


async def test_m13_a_repeated_id_is_a_breach_even_among_unrequested_rows() -> None:
    for repeated in ("1", "9"):
        store = CrudStore(get=[row(repeated), row(repeated)])
        assert fault(await create_memory(store=store).get({"ids": ["1"]})) == BACKEND_OUTPUT


async def test_m14_the_last_row_of_a_key_answers_the_key() -> None:
    store = CrudStore(get=[row("1", "k"), row("2", "k")])
    assert (await create_memory(store=store).get({"keys": ["k"]})).output == [row("2", "k")]


async def test_m15_missing_records_are_omitted() -> None:
    assert (await create_memory(store=CrudStore(get=[row("2")])).get({"ids": ["1", "2"]})).output == [row("2")]
    nothing = await create_memory(store=CrudStore(get=[])).get({"ids": ["1"]})
    assert (nothing.status, nothing.output) == ("success", [])


@pytest.mark.parametrize("bad", BAD_ROWS)
async def test_m16_malformed_rows_are_breaches_of_every_node(bad: Any) -> None:
    store = SearchingStore(
        get=[bad], query={"items": [bad]}, search=[{"memory": bad}], write=[bad], update=[bad], delete=None
    )
    memory = create_memory(store=store)
    assert fault(await memory.get({"ids": ["1"]})) == BACKEND_OUTPUT
    assert fault(await memory.query({})) == BACKEND_OUTPUT
    assert fault(await memory.search({"query": 1})) == BACKEND_OUTPUT
    assert fault(await memory.write({"memories": [{"content": 1}]})) == BACKEND_OUTPUT
    assert fault(await memory.update({"memories": [{"id": "1", "content": 1}]})) == BACKEND_OUTPUT


async def test_m16_null_content_is_content_and_extra_properties_survive() -> None:
    full = {"id": "1", "content": None, "version": 3, "createdAt": "2026-01-01T00:00:00Z", "own": [1]}
    assert (await create_memory(store=CrudStore(get=[full])).get({"ids": ["1"]})).output == [full]


# --- QUERY


async def test_m17_the_default_limit_is_100_and_the_input_is_not_mutated() -> None:
    store = CrudStore(query={"items": []})
    given: dict[str, Any] = {}
    result = await create_memory(store=store).query(given)
    assert result.output == {"items": []}
    assert store.inputs("query") == [{"limit": 100}]
    assert given == {}


async def test_m18_a_full_query_reaches_the_store_unchanged() -> None:
    store = CrudStore(query={"items": []})
    given = {
        "filter": {"state": "active"},
        "cursor": "opaque:token",
        "orderBy": [{"field": "created_at", "direction": "desc"}],
        "limit": 5,
    }
    await create_memory(store=store).query(given)
    assert store.inputs("query") == [given]


@pytest.mark.parametrize("limit", [0, -1, 10001, 1.5, "5", None, True, float("nan"), float("inf"), [], 10**30])
async def test_m19_limits_are_integers_of_1_to_10000(limit: Any) -> None:
    store = SearchingStore()
    expected = invalid("limit must be an integer in 1..10000")
    assert fault(await create_memory(store=store).query({"limit": limit})) == expected
    assert fault(await create_memory(store=store).search({"query": "x", "limit": limit})) == expected
    assert store.calls == []


@pytest.mark.parametrize(("limit", "seen"), [(1, 1), (10000, 10000), (5.0, 5)])
async def test_m19_the_ends_of_the_range_are_accepted(limit: Any, seen: int) -> None:
    store = CrudStore(query={"items": []})
    assert (await create_memory(store=store).query({"limit": limit})).status == "success"
    assert store.inputs("query") == [{"limit": seen}]
    assert type(store.inputs("query")[0]["limit"]) is int


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cursor": ""}, "cursor must be a nonempty string"),
        ({"cursor": 1}, "cursor must be a nonempty string"),
        ({"cursor": None}, "cursor must be a nonempty string"),
        ({"filter": []}, "filter must be an object"),
        ({"filter": None}, "filter must be an object"),
        ({"filter": "x"}, "filter must be an object"),
        ({"orderBy": {}}, "orderBy must be an array"),
        ({"orderBy": None}, "orderBy must be an array"),
        ({"orderBy": "id"}, "orderBy must be an array"),
        ({"orderBy": ["id"]}, "orderBy must be an object"),
        ({"orderBy": [None]}, "orderBy must be an object"),
        ({"orderBy": [{}]}, "orderBy.field must be a nonempty string"),
        ({"orderBy": [{"field": ""}]}, "orderBy.field must be a nonempty string"),
        ({"orderBy": [{"field": "id", "direction": "sideways"}]}, "Invalid order direction"),
        ({"orderBy": [{"field": "id", "direction": None}]}, "Invalid order direction"),
        ({"orderBy": [{"field": "id", "direction": "ASC"}]}, "Invalid order direction"),
    ],
)
async def test_m20_m21_malformed_queries(given: Any, message: str) -> None:
    store = CrudStore()
    assert fault(await create_memory(store=store).query(given)) == invalid(message)
    assert store.calls == []


@pytest.mark.parametrize("order", [[], [{"field": "id"}], [{"field": " "}], [{"field": "a"}, {"field": "a"}]])
async def test_m21_an_order_without_direction_or_entries_is_fine(order: Any) -> None:
    store = CrudStore(query={"items": []})
    assert (await create_memory(store=store).query({"orderBy": order})).status == "success"
    assert store.inputs("query") == [{"limit": 100, "orderBy": order}]


async def test_m21_checks_run_filter_limit_cursor_order() -> None:
    memory = create_memory(store=CrudStore())
    bad: dict[str, Any] = {"orderBy": 1, "cursor": "", "limit": 0, "filter": 1}
    for field, message in [
        ("filter", "filter must be an object"),
        ("limit", "limit must be an integer in 1..10000"),
        ("cursor", "cursor must be a nonempty string"),
        ("orderBy", "orderBy must be an array"),
    ]:
        assert fault(await memory.query(bad)) == invalid(message)
        del bad[field]


@pytest.mark.parametrize(
    "output",
    [
        None,
        [],
        "x",
        {},
        {"items": None},
        {"items": {}},
        {"items": [{}]},
        {"items": [row("1"), row("1")]},
        {"items": [], "nextCursor": ""},
        {"items": [], "nextCursor": None},
        {"items": [], "nextCursor": 1},
    ],
)
async def test_m22_malformed_pages(output: Any) -> None:
    assert fault(await create_memory(store=CrudStore(query=output)).query({})) == BACKEND_OUTPUT


async def test_m22_a_page_may_have_a_cursor() -> None:
    page = {"items": [row("1")], "nextCursor": "next"}
    assert (await create_memory(store=CrudStore(query=page)).query({})).output == page


async def test_m23_more_items_than_the_effective_limit() -> None:
    rows = [row(str(number)) for number in range(101)]
    assert fault(await create_memory(store=CrudStore(query={"items": rows})).query({})) == BACKEND_OUTPUT
    assert fault(await create_memory(store=CrudStore(query={"items": rows[:3]})).query({"limit": 2})) == BACKEND_OUTPUT
    memory = create_memory(store=CrudStore(query={"items": rows[:5]}), defaults={"queryLimit": 4})
    assert fault(await memory.query({})) == BACKEND_OUTPUT
    assert (await memory.query({"limit": 5})).status == "success"
