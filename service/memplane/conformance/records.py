"""What comes back is what went in, and what does not exist is absent."""

from __future__ import annotations

from typing import Any

import pytest

from memplane.conformance.base import Bench, ConformanceBase, code, ids, write

CONTENTS: list[Any] = [
    "",
    "plain text",
    "ein Text mit Umlauten: äöüß, 中文, 日本語, 한국어, 🜚, e\u0301 and \u00e9",
    'quotes " and \\ backslashes, \t tabs\n and lines; \u2028 too',
    None,
    True,
    False,
    0,
    -1,
    2**53,
    0.1,
    -2.5e-7,
    1e16,
    [],
    {},
    [1, [2, [3, {"deep": [None]}]]],
    {"text": "hello", "": "empty name", "a.b": 1, "$gt": 2, "nested": {"list": [1, "1", True]}},
]

FOREIGN_IDS = ["", "0", "007", "-1", "1.0", " 1", "1 ", "1e3", "９", "99999999999999999999", "9223372036854775808", "x"]


class RecordsConformance(ConformanceBase):
    @pytest.mark.parametrize("content", CONTENTS, ids=repr)
    async def test_content_comes_back_unchanged(self, bench: Bench, content: Any) -> None:
        metadata = {"as": {"metadata": content}}
        [item] = await write(bench.own, {"content": content, "metadata": metadata})
        [read] = (await bench.own.get({"ids": [item["id"]]})).unwrap()
        for seen in (item, read):
            assert seen["content"] == content
            assert type(seen["content"]) is type(content) or isinstance(content, float)
            assert seen["metadata"] == metadata

    async def test_absent_key_and_metadata_stay_absent(self, bench: Bench) -> None:
        [item] = await write(bench.own, {"content": 1})
        [read] = (await bench.own.get({"ids": [item["id"]]})).unwrap()
        assert "key" not in read
        assert read.get("metadata", {}) == {}

    async def test_items_come_back_in_the_order_of_the_drafts(self, bench: Bench) -> None:
        keys = [f"k{number}" for number in (5, 3, 9, 1, 7)]
        items = await write(bench.own, *({"key": key, "content": f"content of {key}"} for key in keys))
        assert [(item["key"], item["content"]) for item in items] == [(key, f"content of {key}") for key in keys]
        assert len(set(ids(items))) == len(items)

    async def test_a_callers_objects_are_not_shared(self, bench: Bench) -> None:
        content: dict[str, Any] = {"list": [1]}
        [item] = await write(bench.own, {"content": content, "metadata": {"a": [1]}})
        content["list"].append(2)
        item["content"]["list"].append(3)
        item["metadata"]["a"].append(3)
        [read] = (await bench.own.get({"ids": [item["id"]]})).unwrap()
        assert read["content"] == {"list": [1]}
        assert read["metadata"] == {"a": [1]}

    async def test_keys_are_compared_exactly(self, bench: Bench) -> None:
        keys = ["key", "Key", "key ", " key", "ke%", "ke_", "k\u00e9", "ke\u0301", "'; DROP TABLE memories; --", "*"]
        items = await write(bench.own, *({"key": key, "content": key} for key in keys))
        for item in items:
            [read] = (await bench.own.get({"keys": [item["key"]]})).unwrap()
            assert read["id"] == item["id"]

    async def test_ids_that_no_memory_has_are_absent(self, bench: Bench) -> None:
        [item] = await write(bench.own, {"content": 1})
        foreign = [memory_id for memory_id in [*FOREIGN_IDS, f"0{item['id']}", f"{item['id']} "] if memory_id]
        assert (await bench.own.get({"ids": foreign})).unwrap() == []
        assert (await bench.own.delete({"ids": foreign})).unwrap() == {"deleted": []}
        for memory_id in foreign:
            result = await bench.own.update({"memories": [{"id": memory_id, "content": 2}]})
            assert code(result) == "NOT_FOUND", memory_id
        assert len((await bench.own.get({"ids": [item["id"]]})).unwrap()) == 1

    async def test_large_batches(self, bench: Bench) -> None:
        items = await write(bench.own, *({"content": f"memory {number}"} for number in range(1000)))
        assert len({item["id"] for item in items}) == 1000
        read = (await bench.own.get({"ids": ids(items)})).unwrap()
        assert ids(read) == ids(items)
        assert len((await bench.own.delete({"ids": ids(items)})).unwrap()["deleted"]) == 1000

    @pytest.mark.parametrize("text", ["a\0b", "\ud800", "x\udfffy"], ids=["nul", "high surrogate", "low surrogate"])
    async def test_text_that_a_store_cannot_hold_is_refused_not_altered(self, bench: Bench, text: str) -> None:
        drafts: list[dict[str, Any]] = [
            {"content": text},
            {"content": {"a": [text]}},
            {"content": {text: 1}},
            {"content": 1, "key": text},
            {"content": 1, "metadata": {"a": text}},
            {"content": 1, "metadata": {text: 1}},
        ]
        for draft in drafts:
            result = await bench.own.write({"memories": [draft]})
            if code(result) == "success":
                [item] = (await bench.own.get({"ids": ids(result.unwrap())})).unwrap()
                assert {name: item[name] for name in draft} == draft  # type: ignore[literal-required]
            else:
                assert code(result) == "INVALID_INPUT"
        # Where no such text can be stored there is none to be found; an error is a clear answer, too.
        assert code(await bench.own.get({"keys": [text]})) in ("success", "INVALID_INPUT")
        assert code(await bench.own.get({"ids": [text]})) == "success"
