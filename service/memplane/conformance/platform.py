"""What the stores of this project promise beyond the contract (design section 5).

Reserved metadata fields are validated and act, expired memories are absent, relations point at live memories of the
same scope, times and limits are those of the documentation.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from memplane.conformance.base import Bench, ConformanceBase, code, everything, ids, write

BAD_METADATA: list[tuple[dict[str, Any], str]] = [
    ({"importance": 1.5}, "importance"),
    ({"importance": -0.1}, "importance"),
    ({"importance": "high"}, "importance"),
    ({"importance": True}, "importance"),
    ({"importance": None}, "importance"),
    ({"category": ""}, "category"),
    ({"category": 1}, "category"),
    ({"tags": "a"}, "tags"),
    ({"tags": [1]}, "tags"),
    ({"slot_hint": []}, "slot_hint"),
    ({"expires_at": "tomorrow"}, "expires_at"),
    ({"expires_at": "2030-01-01T00:00:00"}, "expires_at"),
    ({"expires_at": 1767225600}, "expires_at"),
    ({"relations": {}}, "relations"),
    ({"relations": [{"type": "x"}]}, "relations"),
    ({"relations": [{"target": "1"}]}, "relations"),
    ({"relations": [{"type": "x", "target": "999999999999"}]}, "relations"),
    ({"relations": [{"type": "x", "target": "007"}]}, "relations"),
]


def _in(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


class PlatformConformance(ConformanceBase):
    async def test_items_carry_version_and_times(self, bench: Bench) -> None:
        [item] = await write(bench.own, {"content": 1})
        assert item["version"] == 1
        for field in ("createdAt", "updatedAt"):
            assert datetime.strptime(item[field], "%Y-%m-%dT%H:%M:%S.%f%z").utcoffset() == timedelta(0)
        [updated] = (await bench.own.update({"memories": [{"id": item["id"], "content": 2}]})).unwrap()
        assert updated["createdAt"] == item["createdAt"]
        assert updated["updatedAt"] >= item["updatedAt"]
        assert updated["version"] == 2

    @pytest.mark.parametrize(("metadata", "field"), BAD_METADATA, ids=str)
    async def test_reserved_fields_are_validated(self, bench: Bench, metadata: dict[str, Any], field: str) -> None:
        [item] = await write(bench.own, {"content": "unchanged"})
        results = [
            await bench.own.write({"memories": [{"content": 0}, {"content": 1, "metadata": metadata}]}),
            await bench.own.update({"memories": [{"id": item["id"], "metadata": metadata}]}),
        ]
        for result in results:
            assert code(result) == "INVALID_INPUT"
            assert result.error is not None
            assert field in result.error.message
        assert await everything(bench.own) == [item]

    async def test_reserved_fields_come_back_and_can_be_asked_for(self, bench: Bench) -> None:
        metadata = {
            "importance": 0.75,
            "category": "preference",
            "tags": ["a", "b"],
            "slot_hint": "colour",
            "expires_at": _in(3600),
            "relations": [],
        }
        [item] = await write(bench.own, {"content": 1, "metadata": metadata})
        await write(bench.own, {"content": 2})
        assert item["metadata"] == metadata
        for condition in (
            {"importance": {"$gt": 0.5}},
            {"category": "preference"},
            {"tags": {"$contains": "b"}},
            {"slot_hint": "colour"},
            {"expires_at": {"$gt": _in(0)}},
        ):
            assert ids(await everything(bench.own, filter=condition)) == [item["id"]], condition

    async def test_an_expired_memory_is_absent_everywhere(self, bench: Bench) -> None:
        [item] = await write(bench.own, {"key": "k", "content": "fleeting", "metadata": {"expires_at": _in(0.3)}})
        assert len(await everything(bench.own)) == 1
        await asyncio.sleep(0.5)  # the store's own clock decides, and that one cannot be injected
        assert await everything(bench.own) == []
        assert (await bench.own.get({"ids": [item["id"]], "keys": ["k"]})).unwrap() == []
        assert code(await bench.own.update({"memories": [{"id": item["id"], "content": 2}]})) == "NOT_FOUND"
        assert (await bench.own.delete({"ids": [item["id"]]})).unwrap() == {"deleted": []}
        relations = {"relations": [{"type": "about", "target": item["id"]}]}
        assert code(await bench.own.write({"memories": [{"content": 1, "metadata": relations}]})) == "INVALID_INPUT"
        # Its key is free, also for several writers at once.
        results = await asyncio.gather(
            *(bench.own.write({"memories": [{"key": "k", "content": number}]}) for number in range(4))
        )
        assert sorted(code(result) for result in results) == ["CONFLICT"] * 3 + ["success"]

    async def test_a_memory_may_be_written_expired(self, bench: Bench) -> None:
        await bench.own.write({"memories": [{"key": "k", "content": 1, "metadata": {"expires_at": _in(-60)}}]})
        assert await everything(bench.own) == []
        await write(bench.own, {"key": "k", "content": 2})

    async def test_relations_point_at_live_memories_of_the_scope(self, bench: Bench) -> None:
        [target] = await write(bench.own, {"content": "target"})
        [foreign] = await write(bench.same_tenant, {"content": "foreign"})
        relation = [{"type": "about", "target": target["id"]}, {"type": "cites", "target": target["id"]}]
        [source] = await write(bench.own, {"content": "source", "metadata": {"relations": relation}})
        assert source["metadata"]["relations"] == relation
        for bad in ([*relation, {"type": "about", "target": foreign["id"]}], [relation[0], relation[0]]):
            result = await bench.own.update({"memories": [{"id": source["id"], "metadata": {"relations": bad}}]})
            assert code(result) == "INVALID_INPUT"
        assert (await bench.own.delete({"ids": [target["id"]]})).unwrap()["deleted"] == [target["id"]]
        entry = {"id": source["id"], "metadata": {"relations": relation}}
        assert code(await bench.own.update({"memories": [entry]})) == "INVALID_INPUT"

    async def test_metadata_cannot_move_a_memory(self, bench: Bench) -> None:
        metadata = {"tenant": "x", "user_id": "y", "id": "1", "version": 99, "key": "z", "deleted_at": "2020"}
        [item] = await write(bench.own, {"key": "k", "content": 1, "metadata": metadata})
        assert (item["version"], item["key"], item["metadata"]) == (1, "k", metadata)
        assert ids(await everything(bench.own, filter={"metadata.version": 99})) == [item["id"]]
        assert await everything(bench.own, filter={"version": 99}) == []

    @pytest.mark.parametrize(
        ("draft", "field"),
        [
            ({"content": 1, "key": "k" * 513}, "key"),
            ({"content": "c" * (2**20 - 1)}, "content"),
            ({"content": ["c" * (2**20 - 3)]}, "content"),
            ({"content": 1, "metadata": {"m": "m" * (64 * 2**10 - 7)}}, "metadata"),
            ({"content": "a\0b"}, "content"),
            ({"content": {"a": ["\ud800"]}}, "content"),
            ({"content": 1, "key": "a\0"}, "key"),
            ({"content": 1, "metadata": {"\udc00": 1}}, "metadata"),
            ({"content": float("nan")}, "content"),
            ({"content": {"a": float("inf")}}, "content"),
            ({"content": object()}, "content"),
            ({"content": {1: "a"}}, "content"),
            ({"content": 1, "metadata": {"a": {1, 2}}}, "metadata"),
        ],
        ids=lambda value: str(value)[:40],
    )
    async def test_what_cannot_be_stored_is_invalid_input(
        self, bench: Bench, draft: dict[str, Any], field: str
    ) -> None:
        result = await bench.own.write({"memories": [draft]})
        assert code(result) == "INVALID_INPUT"
        assert result.error is not None
        assert field in result.error.message
        assert await everything(bench.own) == []

    async def test_the_largest_that_can_be_stored(self, bench: Bench) -> None:
        key, content, metadata = "k" * 512, "c" * (2**20 - 2), {"m": "m" * (64 * 2**10 - 8)}
        await write(bench.own, {"key": key, "content": content, "metadata": metadata})
        [read] = (await bench.own.get({"keys": [key]})).unwrap()
        assert (read["content"], read["metadata"]) == (content, metadata)

    async def test_a_page_stops_at_16_mib(self, bench: Bench) -> None:
        items = [item for _ in range(18) for item in await write(bench.own, {"content": "c" * (2**20 - 2)})]
        page = (await bench.own.query({})).unwrap()
        assert 1 <= len(page["items"]) <= 16
        rest = (await bench.own.query({"cursor": page["nextCursor"]})).unwrap()
        assert ids([*page["items"], *rest["items"]]) == ids(items)

    @pytest.mark.parametrize("number", [2**63, -(2**70), 10**40, 1e16, 1.5e300, 5e-324, -0.0, 0.1 + 0.2])
    async def test_numbers_keep_their_value(self, bench: Bench, number: float) -> None:
        [item] = await write(bench.own, {"content": [number], "metadata": {"n": number}})
        [read] = (await bench.own.get({"ids": [item["id"]]})).unwrap()
        assert read == item
        # A large float comes back as the integer that its shortest decimal names: the same float again.
        kind = type(number)
        assert [kind(value) for value in (read["content"][0], read["metadata"]["n"])] == [number, number]
