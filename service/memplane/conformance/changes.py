"""WRITE, UPDATE and DELETE: keys, versions, and what is left when one entry of a batch fails."""

from __future__ import annotations

from typing import Any

import pytest

from memplane.conformance.base import Bench, ConformanceBase, code, everything, ids, write


class ChangesConformance(ConformanceBase):
    async def test_a_taken_key_is_a_conflict(self, bench: Bench) -> None:
        [first] = await write(bench.own, {"key": "k", "content": "first"})
        assert code(await bench.own.write({"memories": [{"key": "k", "content": "second"}]})) == "CONFLICT"
        [read] = (await bench.own.get({"keys": ["k"]})).unwrap()
        assert (read["id"], read["content"]) == (first["id"], "first")

    async def test_a_key_twice_in_a_batch_is_a_conflict(self, bench: Bench) -> None:
        drafts = [{"key": "k", "content": 1}, {"key": "k", "content": 2}]
        assert code(await bench.own.write({"memories": drafts})) == "CONFLICT"
        if bench.atomic:
            assert await everything(bench.own) == []

    async def test_a_deleted_memorys_key_is_free_again(self, bench: Bench) -> None:
        [first] = await write(bench.own, {"key": "k", "content": 1})
        await bench.own.delete({"ids": [first["id"]]})
        [second] = await write(bench.own, {"key": "k", "content": 2})
        assert second["id"] != first["id"]
        assert ids((await bench.own.get({"keys": ["k"]})).unwrap()) == [second["id"]]

    async def test_one_conflict_leaves_an_atomic_write_undone(self, bench: Bench) -> None:
        await write(bench.own, {"key": "taken", "content": 0})
        drafts = [{"content": 1}, {"key": "taken", "content": 2}, {"key": "free", "content": 3}]
        assert code(await bench.own.write({"memories": drafts})) == "CONFLICT"
        if bench.atomic:
            assert [item["content"] for item in await everything(bench.own)] == [0]

    async def test_an_update_changes_what_it_names_and_nothing_else(self, bench: Bench) -> None:
        draft = {"key": "k", "content": "old", "metadata": {"a": 1, "b": 2}}
        [item] = await write(bench.own, draft)
        steps: list[tuple[dict[str, Any], Any, dict[str, Any]]] = [
            ({"content": "new"}, "new", {"a": 1, "b": 2}),
            ({"metadata": {"c": 3}}, "new", {"c": 3}),
            ({"content": None}, None, {"c": 3}),
            ({"metadata": {}}, None, {}),
            ({"content": [1], "metadata": {"d": None}}, [1], {"d": None}),
        ]
        for change, content, metadata in steps:
            [updated] = (await bench.own.update({"memories": [{"id": item["id"], **change}]})).unwrap()
            [read] = (await bench.own.get({"keys": ["k"]})).unwrap()
            for seen in (updated, read):
                assert (seen["id"], seen["key"]) == (item["id"], "k")
                assert (seen["content"], seen.get("metadata", {})) == (content, metadata)

    async def test_updating_a_missing_memory_creates_nothing(self, bench: Bench) -> None:
        [item] = await write(bench.own, {"content": 1})
        await bench.own.delete({"ids": [item["id"]]})
        assert code(await bench.own.update({"memories": [{"id": item["id"], "content": 2}]})) == "NOT_FOUND"
        assert await everything(bench.own) == []

    async def test_one_missing_memory_leaves_an_atomic_update_undone(self, bench: Bench) -> None:
        items = await write(bench.own, {"content": 1}, {"content": 2})
        entries = [{"id": memory_id, "content": 0} for memory_id in [ids(items)[0], "999999999999", ids(items)[1]]]
        assert code(await bench.own.update({"memories": entries})) == "NOT_FOUND"
        if bench.atomic:
            assert sorted(item["content"] for item in await everything(bench.own)) == [1, 2]

    async def test_every_change_raises_the_version(self, bench: Bench) -> None:
        [item] = await write(bench.own, {"content": 1})
        assert item["version"] >= 1
        [updated] = (await bench.own.update({"memories": [{"id": item["id"], "content": 1}]})).unwrap()
        assert updated["version"] == item["version"] + 1
        [read] = (await bench.own.get({"ids": [item["id"]]})).unwrap()
        assert read["version"] == updated["version"]

    @pytest.mark.parametrize("offset", [-1, 1, 1000])
    async def test_an_unexpected_version_is_a_conflict_that_names_the_id(self, bench: Bench, offset: int) -> None:
        items = await write(bench.own, {"content": "a"}, {"content": "b"})
        items = list((await bench.own.update({"memories": [{"id": i, "content": "c"} for i in ids(items)]})).unwrap())
        one, other = sorted(items, key=lambda item: item["id"])
        wrong = {"id": other["id"], "content": "x", "expectedVersion": other["version"] + offset}
        right = {"id": one["id"], "content": "x", "expectedVersion": one["version"]}
        result = await bench.own.update({"memories": [right, wrong]})
        assert code(result) == "CONFLICT"
        assert result.error is not None
        assert other["id"] in result.error.message
        expected = {one["id"]: one["version"], other["id"]: other["version"] + offset}
        assert code(await bench.own.delete({"ids": ids(items), "expectedVersions": expected})) == "CONFLICT"
        read = (await bench.own.get({"ids": [other["id"]]})).unwrap()
        assert read == [other]
        if bench.atomic:
            assert (await bench.own.get({"ids": [one["id"]]})).unwrap() == [one]

    async def test_expected_versions_let_through(self, bench: Bench) -> None:
        [item] = await write(bench.own, {"content": 1})
        entry = {"id": item["id"], "content": 2, "expectedVersion": item["version"]}
        [updated] = (await bench.own.update({"memories": [entry]})).unwrap()
        request = {"ids": [item["id"]], "expectedVersions": {item["id"]: updated["version"]}}
        assert (await bench.own.delete(request)).unwrap() == {"deleted": [item["id"]]}
        # A repeated delete is no conflict: there is nothing left that could have another version.
        assert (await bench.own.delete(request)).unwrap() == {"deleted": []}

    async def test_delete_reports_exactly_what_it_removed(self, bench: Bench) -> None:
        items = await write(bench.own, *({"content": number} for number in range(4)))
        assert (await bench.own.delete({"ids": [ids(items)[1], "404", ids(items)[1]]})).unwrap() == {
            "deleted": [ids(items)[1]]
        }
        rest = (await bench.own.delete({"ids": ids(items)})).unwrap()["deleted"]
        assert sorted(rest) == sorted(set(ids(items)) - {ids(items)[1]})
        assert await everything(bench.own) == []
