"""Cursors: a walk over the pages sees every unchanged row exactly once, whatever happens meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from memplane.conformance.base import Bench, ConformanceBase, code, ids, write


class PagesConformance(ConformanceBase):
    @pytest.mark.parametrize("order", [None, "id", "key", "createdAt", "updatedAt", "version"])
    @pytest.mark.parametrize("direction", ["asc", "desc"])
    async def test_unchanged_rows_appear_exactly_once(self, bench: Bench, order: str | None, direction: str) -> None:
        if order is not None and order not in bench.promises("orderFields"):
            assert code(await bench.own.query({"orderBy": [{"field": order}]})) == "UNSUPPORTED_ORDER"
            return
        items = await write(bench.own, *({"key": f"k{number:02}", "content": number} for number in range(20)))
        request: dict[str, Any] = {"limit": 3}
        if order is not None:
            request["orderBy"] = [{"field": order, "direction": direction}]
        seen: list[str] = []
        touched: set[str] = set()
        steps = 0
        page = (await bench.own.query(request)).unwrap()
        while True:
            assert len(page["items"]) <= 3
            seen += ids(page["items"])
            if "nextCursor" not in page:
                break
            if steps < 4:  # for ever, and a walk by updatedAt would never end
                touched |= await self._disturb(bench, items, seen, steps)
            steps += 1
            page = (await bench.own.query({**request, "cursor": page["nextCursor"]})).unwrap()
        for item in items:
            if item["id"] not in touched:
                assert seen.count(item["id"]) == 1

    async def _disturb(self, bench: Bench, items: list[Any], seen: list[str], step: int) -> set[str]:
        """Change one row that was seen, delete one of either kind, write two new ones at both ends of the order."""
        unseen = [item["id"] for item in items if item["id"] not in seen]
        changed, deleted = seen[-1], [seen[-2], *unseen[-1:]]
        await bench.own.update({"memories": [{"id": changed, "content": "changed"}]})
        await bench.own.delete({"ids": deleted})
        new = await write(bench.own, {"key": f"a{step}", "content": "new"}, {"key": f"z{step}", "content": "new"})
        return {changed, *deleted, *ids(new)}

    async def test_the_last_page_has_no_cursor(self, bench: Bench) -> None:
        await write(bench.own, *({"content": number} for number in range(4)))
        first = (await bench.own.query({"limit": 2})).unwrap()
        last = (await bench.own.query({"limit": 2, "cursor": first["nextCursor"]})).unwrap()
        assert len(last["items"]) == 2
        assert "nextCursor" not in last
        assert "nextCursor" not in (await bench.own.query({"limit": 4})).unwrap()

    async def test_a_cursor_works_twice(self, bench: Bench) -> None:
        await write(bench.own, *({"content": number} for number in range(4)))
        cursor = (await bench.own.query({"limit": 1})).unwrap()["nextCursor"]
        again = [(await bench.own.query({"limit": 3, "cursor": cursor})).unwrap() for _ in range(2)]
        assert again[0] == again[1]

    @pytest.mark.parametrize("cursor", ["x", "AAAA", "ß", "e30", "null", "a" * 5000, "\0", "eyJ2IjoxfQ"], ids=repr)
    async def test_a_cursor_from_nowhere_is_refused(self, bench: Bench, cursor: str) -> None:
        await write(bench.own, {"content": 1})
        assert code(await bench.own.query({"cursor": cursor})) == "INVALID_CURSOR"

    async def test_a_cursor_belongs_to_its_scope(self, bench: Bench) -> None:
        await write(bench.own, *({"content": "own"} for _ in range(3)))
        cursor = (await bench.own.query({"limit": 1})).unwrap()["nextCursor"]
        for neighbour in (bench.same_tenant, bench.same_user):
            await write(neighbour, *({"content": "foreign"} for _ in range(3)))
            assert code(await neighbour.query({"limit": 1, "cursor": cursor})) == "INVALID_CURSOR"

    async def test_a_cursor_belongs_to_its_filter_and_order(self, bench: Bench) -> None:
        await write(bench.own, *({"content": number, "metadata": {"n": 1}} for number in range(3)))
        cursor = (await bench.own.query({"limit": 1})).unwrap()["nextCursor"]
        if "$eq" in bench.promises("filters"):
            assert code(await bench.own.query({"filter": {"n": 1}, "cursor": cursor})) == "INVALID_CURSOR"
        for field in bench.promises("orderFields"):
            order = [{"field": field, "direction": "desc"}]
            assert code(await bench.own.query({"orderBy": order, "cursor": cursor})) == "INVALID_CURSOR"
