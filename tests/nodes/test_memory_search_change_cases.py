"""Cases M-24 to M-44: SEARCH, WRITE, UPDATE and DELETE; and the fields that this project adds."""

from __future__ import annotations

from typing import Any

import pytest
from tests.nodes.fakes import CrudStore, Searcher, SearchingStore
from tests.nodes.test_memory_get_query_cases import BACKEND_OUTPUT, fault, invalid, row

from memplane.errors import PluginError, SettingsError
from memplane.nodes import create_memory


def hit(id: str, **extra: Any) -> dict[str, Any]:
    return {"memory": row(id), **extra}


# --- SEARCH


async def test_m24_query_must_be_present_and_may_be_anything() -> None:
    store = SearchingStore(search=[])
    memory = create_memory(store=store)
    assert fault(await memory.search({})) == invalid("query is required")
    assert fault(await memory.search({"query": "x", "limit": None})) == invalid("limit must be an integer in 1..10000")
    assert store.calls == []
    assert (await memory.search({"query": None})).output == []
    assert store.inputs("search") == [{"query": None, "limit": 10}]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"strategy": ""}, "strategy must be a nonempty string"),
        ({"strategy": None}, "strategy must be a nonempty string"),
        ({"options": []}, "options must be an object"),
        ({"options": None}, "options must be an object"),
        ({"filter": []}, "filter must be an object"),
        ({"filter": None}, "filter must be an object"),
    ],
)
async def test_m25_malformed_searches(given: Any, message: str) -> None:
    store = SearchingStore()
    assert fault(await create_memory(store=store).search({"query": "x", **given})) == invalid(message)
    assert store.calls == []


async def test_m25_a_blank_strategy_passes() -> None:
    store = SearchingStore(search=[])
    assert (await create_memory(store=store).search({"query": "x", "strategy": " "})).status == "success"


async def test_m25_checks_run_filter_limit_query_strategy_options() -> None:
    memory = create_memory(store=SearchingStore())
    bad: dict[str, Any] = {"options": 1, "strategy": "", "limit": 0, "filter": 1}
    assert fault(await memory.search(bad)) == invalid("filter must be an object")
    del bad["filter"]
    assert fault(await memory.search(bad)) == invalid("limit must be an integer in 1..10000")
    del bad["limit"]
    assert fault(await memory.search(bad)) == invalid("query is required")
    bad["query"] = "x"
    assert fault(await memory.search(bad)) == invalid("strategy must be a nonempty string")
    del bad["strategy"]
    assert fault(await memory.search(bad)) == invalid("options must be an object")


async def test_m26_a_full_search_reaches_the_plugin_unchanged_and_leaves_the_store_alone() -> None:
    store, search = SearchingStore(), Searcher(search=[])
    given = {
        "query": {"vector": [0.1, 0.2]},
        "strategy": "hybrid",
        "filter": {"a": 1},
        "options": {"metric": "COSINE"},
        "limit": 2,
    }
    assert (await create_memory(store=store, search=search).search(given)).status == "success"
    assert search.inputs("search") == [given]
    assert store.calls == []


async def test_m27_the_stores_own_search_is_called_on_the_store() -> None:
    class Native:
        async def search(self, input: Any, options: Any) -> Any:
            return [hit(self.name())]

        def name(self) -> str:
            return "receiver"

    result = await create_memory(store=Native()).search({"query": "x"})  # type: ignore[arg-type]
    assert result.output == [hit("receiver")]


async def test_m27_an_explicit_search_overrides_search_alone() -> None:
    store = SearchingStore(get=[row("1")], search=[hit("store")])
    memory = create_memory(store=store, search=Searcher(search=[hit("explicit")]))
    assert (await memory.search({"query": "x"})).output == [hit("explicit")]
    assert (await memory.get({"ids": ["1"]})).output == [row("1")]
    assert [name for name, _, _ in store.calls] == ["get"]


async def test_m28_a_store_without_search_still_stores() -> None:
    store = CrudStore(write=[row("1")], query={"items": [row("1")]})
    memory = create_memory(store=store)
    assert fault(await memory.search({"query": "x"})) == ("SEARCH_UNAVAILABLE", "Memory search is not configured")
    assert fault(await memory.search({})) == invalid("query is required")
    assert (await memory.write({"memories": [{"content": 1}]})).status == "success"
    assert (await memory.query({})).status == "success"


@pytest.mark.parametrize("explicit", [object(), CrudStore()])
async def test_m29_an_explicit_search_that_cannot_search_is_not_passed_over(explicit: Any) -> None:
    store = SearchingStore(search=[])
    result = await create_memory(store=store, search=explicit).search({"query": "x"})
    assert fault(result)[0] == "SEARCH_UNAVAILABLE"
    assert store.calls == []


async def test_m30_hits_keep_their_order_and_scores() -> None:
    hits = [hit("2", score=-3), hit("1", score=12.5), hit("3"), hit("4", score=0, metadata={})]
    assert (await create_memory(store=SearchingStore(search=hits)).search({"query": "x"})).output == hits


@pytest.mark.parametrize(
    "extra",
    [
        {"score": float("nan")},
        {"score": float("inf")},
        {"score": float("-inf")},
        {"score": "0.9"},
        {"score": None},
        {"score": True},
        {"metadata": []},
        {"metadata": None},
        {"metadata": "x"},
    ],
)
async def test_m30_malformed_scores_and_metadata(extra: Any) -> None:
    store = SearchingStore(search=[hit("1", **extra)])
    assert fault(await create_memory(store=store).search({"query": "x"})) == BACKEND_OUTPUT


@pytest.mark.parametrize(
    "output",
    [
        [hit("1"), hit("1")],
        {"hits": []},
        "x",
        None,
        [None],
        [{}],
        [{"memory": {"id": "1"}}],
        [row("1")],
    ],
)
async def test_m31_malformed_results(output: Any) -> None:
    assert fault(await create_memory(store=SearchingStore(search=output)).search({"query": "x"})) == BACKEND_OUTPUT


async def test_m31_too_many_hits_are_never_truncated() -> None:
    store = SearchingStore(search=[hit(str(number)) for number in range(11)])
    assert fault(await create_memory(store=store).search({"query": "x"})) == BACKEND_OUTPUT
    assert (await create_memory(store=store).search({"query": "x", "limit": 11})).status == "success"


# --- WRITE


async def test_m32_an_empty_batch_is_answered_locally() -> None:
    store = CrudStore()
    memory = create_memory(store=store)
    result = await memory.write({"memories": []})
    assert (result.status, result.output, store.calls) == ("success", [], [])
    for bad in ({}, {"memories": "x"}, {"memories": None}, {"memories": {}}):
        assert fault(await memory.write(bad)) == invalid("memories must be an array")


@pytest.mark.parametrize(
    ("draft", "message"),
    [
        ({}, "content is required"),
        ({"content": 1, "key": ""}, "key must be a nonempty string"),
        ({"content": 1, "key": None}, "key must be a nonempty string"),
        ({"content": 1, "metadata": []}, "metadata must be an object"),
        ({"content": 1, "metadata": None}, "metadata must be an object"),
        ("x", "memory must be an object"),
        (None, "memory must be an object"),
    ],
)
async def test_m33_m34_one_bad_draft_rejects_the_batch(draft: Any, message: str) -> None:
    store = CrudStore()
    result = await create_memory(store=store).write({"memories": [{"content": "good"}, draft]})
    assert fault(result) == invalid(message)
    assert store.calls == []


async def test_m33_null_content_is_fine() -> None:
    store = CrudStore(write=[row("1")])
    assert (await create_memory(store=store).write({"memories": [{"content": None}]})).status == "success"
    assert store.inputs("write") == [{"memories": [{"content": None}]}]


async def test_m34_no_cap_and_repeated_keys_and_ids_are_the_stores_business() -> None:
    count = 10_001
    store = CrudStore(write=lambda input, options: [row(str(number)) for number in range(len(input["memories"]))])
    drafts = [{"id": "mine", "key": "same", "content": 1}] * count
    result = await create_memory(store=store).write({"memories": drafts})
    assert len(result.unwrap()) == count
    # An id in a draft is an unknown field: no error, and nothing that a store could mistake for its own.
    assert store.inputs("write")[0]["memories"][0] == {"key": "same", "content": 1}


async def test_m34_content_reaches_the_store_as_the_same_object() -> None:
    content, metadata = object(), {"a": 1}
    store = CrudStore(write=[row("1")])
    await create_memory(store=store).write({"memories": [{"content": content, "metadata": metadata}]})
    [draft] = store.inputs("write")[0]["memories"]
    assert draft["content"] is content
    assert draft["metadata"] is metadata


@pytest.mark.parametrize("output", [[], [row("1")], [row("1"), row("2"), row("3")], [row("1"), row("1")], None])
async def test_m35_another_number_of_rows_is_a_breach(output: Any) -> None:
    store = CrudStore(write=output)
    result = await create_memory(store=store).write({"memories": [{"content": 1}, {"content": 2}]})
    assert fault(result) == BACKEND_OUTPUT
    assert len(store.calls) == 1


async def test_m35_returned_keys_and_contents_are_not_compared() -> None:
    store = CrudStore(write=[row("1", "other")])
    assert (await create_memory(store=store).write({"memories": [{"key": "k", "content": 1}]})).status == "success"


# --- UPDATE


async def test_m36_an_empty_batch_is_answered_locally() -> None:
    store = CrudStore()
    memory = create_memory(store=store)
    result = await memory.update({"memories": []})
    assert (result.status, result.output, store.calls) == ("success", [], [])
    for bad in ({}, {"memories": "x"}, {"memories": None}):
        assert fault(await memory.update(bad)) == invalid("memories must be an array")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"content": 1}, "id must be a nonempty string"),
        ({"id": "", "content": 1}, "id must be a nonempty string"),
        ({"id": 1, "content": 1}, "id must be a nonempty string"),
        ({"id": "first", "content": 1}, "Duplicate update id"),
        ({"id": "a"}, "UPDATE requires content or metadata"),
        ({"id": "a", "key": "x", "content": 1}, "UPDATE cannot change key"),
        ({"id": "a", "key": None, "content": 1}, "UPDATE cannot change key"),
        ({"id": "a", "metadata": None}, "metadata must be an object"),
        ({"id": "a", "metadata": []}, "metadata must be an object"),
        (None, "memory must be an object"),
    ],
)
async def test_m37_malformed_updates(entry: Any, message: str) -> None:
    store = CrudStore()
    result = await create_memory(store=store).update({"memories": [{"id": "first", "content": 1}, entry]})
    assert fault(result) == invalid(message)
    assert store.calls == []


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"id": "first"}, "Duplicate update id"),
        ({"id": "a", "key": "x"}, "UPDATE requires content or metadata"),
        ({"id": "a", "content": 1, "key": "x", "metadata": 1}, "UPDATE cannot change key"),
    ],
)
async def test_m38_the_order_of_the_checks(entry: Any, message: str) -> None:
    result = await create_memory(store=CrudStore()).update({"memories": [{"id": "first", "content": 1}, entry]})
    assert fault(result) == invalid(message)


async def test_m39_absent_fields_stay_absent_for_the_store_and_null_content_is_a_value() -> None:
    full = {"id": "a", "key": "k", "content": "old", "metadata": {"revision": 2}}
    store = CrudStore(update=[full])
    memory = create_memory(store=store)
    for entry in ({"id": "a", "metadata": {"revision": 2}}, {"id": "a", "content": None}, {"id": "a", "metadata": {}}):
        assert (await memory.update({"memories": [entry]})).output == [full]
        assert store.inputs("update")[-1] == {"memories": [entry]}


async def test_m40_a_plugin_error_passes_its_code_and_message() -> None:
    store = CrudStore(update=PluginError("NOT_FOUND", "Memory 7 does not exist"))
    result = await create_memory(store=store).update({"memories": [{"id": "7", "content": 1}]})
    assert fault(result) == ("NOT_FOUND", "Memory 7 does not exist")


@pytest.mark.parametrize("output", [[], [row("a")], [row("a"), row("b"), row("c")], [row("a"), row("x")]])
async def test_m41_the_updated_ids_must_be_the_requested_ones(output: Any) -> None:
    given = {"memories": [{"id": "a", "content": 1}, {"id": "b", "content": 1}]}
    assert fault(await create_memory(store=CrudStore(update=output)).update(given)) == BACKEND_OUTPUT


async def test_m41_in_any_order_and_with_any_key() -> None:
    rows = [row("b", "another key"), row("a")]
    given = {"memories": [{"id": "a", "content": 1}, {"id": "b", "content": 1}]}
    assert (await create_memory(store=CrudStore(update=rows)).update(given)).output == rows


# --- DELETE


async def test_m42_delete_deduplicates_and_reports_what_went() -> None:
    left = {"A"}

    def delete(input: Any, options: Any) -> Any:
        gone = [id for id in input["ids"] if id in left]
        left.clear()
        return {"deleted": gone}

    store = CrudStore(delete=delete)
    memory = create_memory(store=store)
    given = {"ids": ["A", "A", "missing"]}
    assert (await memory.delete(given)).output == {"deleted": ["A"]}
    assert store.inputs("delete") == [{"ids": ["A", "missing"]}]
    assert (await memory.delete(given)).output == {"deleted": []}
    assert len(store.calls) == 2
    assert (await memory.delete({"ids": []})).output == {"deleted": []}
    assert len(store.calls) == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "ids must be an array"),
        ({"ids": None}, "ids must be an array"),
        ({"ids": [1]}, "ids must be a nonempty string"),
        ({"ids": [""]}, "ids must be a nonempty string"),
    ],
)
async def test_m43_malformed_deletes(given: Any, message: str) -> None:
    store = CrudStore()
    assert fault(await create_memory(store=store).delete(given)) == invalid(message)
    assert store.calls == []


@pytest.mark.parametrize(
    "output",
    [{"deleted": ["x"]}, {"deleted": ["a", "a"]}, {"deleted": [1]}, {"deleted": "a"}, {"deleted": None}, {}, [], None],
)
async def test_m44_malformed_deletions(output: Any) -> None:
    assert fault(await create_memory(store=CrudStore(delete=output)).delete({"ids": ["a", "b"]})) == BACKEND_OUTPUT


# --- fields of this project, and unknown ones


async def test_expected_versions_reach_the_store() -> None:
    store = CrudStore(update=[row("a")], delete={"deleted": []})
    memory = create_memory(store=store)
    update = {"memories": [{"id": "a", "content": 1, "expectedVersion": 3}]}
    await memory.update(update)
    assert store.inputs("update") == [update]
    delete = {"ids": ["a", "b"], "expectedVersions": {"a": 2.0}}
    await memory.delete(delete)
    assert store.inputs("delete") == [{"ids": ["a", "b"], "expectedVersions": {"a": 2}}]


@pytest.mark.parametrize("version", [0, -1, 1.5, "1", None, True, 2**53])
async def test_expected_versions_are_positive_integers(version: Any) -> None:
    store = CrudStore()
    memory = create_memory(store=store)
    result = await memory.update({"memories": [{"id": "a", "content": 1, "expectedVersion": version}]})
    assert fault(result) == invalid("expectedVersion must be an integer in 1..9007199254740991")
    result = await memory.delete({"ids": ["a"], "expectedVersions": {"a": version}})
    assert fault(result) == invalid("expectedVersions must be an integer in 1..9007199254740991")
    assert store.calls == []


async def test_expected_versions_name_requested_ids_only() -> None:
    memory = create_memory(store=CrudStore())
    for bad in ([], None, "x"):
        result = await memory.delete({"ids": ["a"], "expectedVersions": bad})
        assert fault(result) == invalid("expectedVersions must be an object")
    result = await memory.delete({"ids": ["a"], "expectedVersions": {"b": 1}})
    assert fault(result) == invalid("expectedVersions must name requested ids only")


async def test_unknown_fields_are_ignored_and_reach_no_plugin() -> None:
    store = SearchingStore(
        get=[], query={"items": []}, search=[], write=[row("1")], update=[row("1")], delete={"deleted": []}
    )
    memory = create_memory(store=store)
    extra = {"tenant": "foreign", "scope": {"user": "*"}}
    await memory.get({"ids": ["1"], **extra})
    await memory.query({"orderBy": [{"field": "id", **extra}], **extra})
    await memory.search({"query": "x", **extra})
    await memory.write({"memories": [{"content": 1, **extra}], **extra})
    await memory.update({"memories": [{"id": "1", "content": 1, **extra}], **extra})
    await memory.delete({"ids": ["1"], **extra})
    assert [seen for _, seen, _ in store.calls] == [
        {"ids": ["1"], "keys": []},
        {"limit": 100, "orderBy": [{"field": "id"}]},
        {"query": "x", "limit": 10},
        {"memories": [{"content": 1}]},
        {"memories": [{"id": "1", "content": 1}]},
        {"ids": ["1"]},
    ]


def test_a_backend_given_as_a_store_is_refused_with_the_remedy() -> None:
    class Backend:
        def scoped(self, scope: Any) -> Any:
            raise AssertionError

    with pytest.raises(SettingsError, match=r"backend\.scoped\(Scope\(tenant, user\)\)"):
        create_memory(store=Backend())  # type: ignore[arg-type]
