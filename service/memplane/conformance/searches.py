"""SEARCH: every promised strategy finds, obeys filter and limit; everything else is refused."""

from __future__ import annotations

from collections.abc import Sequence

from memplane.conformance.base import Bench, ConformanceBase, code, ids, write
from memplane.nodes import Memory


class SearchesConformance(ConformanceBase):
    async def test_a_store_that_promises_no_strategy_does_not_search(
        self, bench: Bench, strategies: Sequence[str]
    ) -> None:
        if not strategies:
            assert code(await bench.own.search({"query": "x"})) == "SEARCH_UNAVAILABLE"
        else:
            assert code(await bench.own.search({"query": "nothing is stored yet"})) == "success"

    async def test_every_strategy_finds_what_was_written(self, bench: Bench, strategies: Sequence[str]) -> None:
        wanted, *_ = await write(
            bench.own,
            {"content": "the warehouse in Rotterdam opens at seven", "metadata": {"n": 1}},
            {"content": "bread needs flour, water and salt", "metadata": {"n": 2}},
            {"content": {"text": "structured content about telescopes"}, "metadata": {"n": 3}},
        )
        await self.settle()
        for strategy in _independent(strategies):
            assert await _found(bench.own, "warehouse Rotterdam", strategy=strategy) == wanted["id"], strategy
        if strategies:
            assert await _found(bench.own, "warehouse Rotterdam") == wanted["id"]

    async def test_chinese_is_found(self, bench: Bench, strategies: Sequence[str]) -> None:
        wanted, _ = await write(bench.own, {"content": "用户喜欢喝乌龙茶"}, {"content": "会议在星期三举行"})
        await self.settle()
        for strategy in _independent(strategies):
            assert await _found(bench.own, "乌龙茶", strategy=strategy) == wanted["id"], strategy

    async def test_updates_and_deletes_are_followed(self, bench: Bench, strategies: Sequence[str]) -> None:
        changed, deleted = await write(bench.own, {"content": "about basalt"}, {"content": "about basalt columns"})
        await bench.own.update({"memories": [{"id": changed["id"], "content": "about gneiss"}]})
        await bench.own.delete({"ids": [deleted["id"]]})
        await self.settle()
        for strategy in _independent(strategies):
            assert await _found(bench.own, "gneiss", strategy=strategy) == changed["id"]
            hits = (await bench.own.search({"query": "basalt columns", "strategy": strategy})).unwrap()
            assert deleted["id"] not in [hit["memory"]["id"] for hit in hits]
            assert all(hit["memory"]["content"] != "about basalt" for hit in hits)

    async def test_filter_and_limit_hold(self, bench: Bench, strategies: Sequence[str]) -> None:
        items = await write(
            bench.own, *({"content": f"note {number} about otters", "metadata": {"n": number}} for number in range(8))
        )
        await self.settle()
        for strategy in _independent(strategies):
            request = {"query": "note about otters", "strategy": strategy}
            assert len((await bench.own.search({**request, "limit": 3})).unwrap()) == 3
            if "$eq" in bench.promises("filters"):
                hits = (await bench.own.search({**request, "filter": {"n": 5}})).unwrap()
                assert [hit["memory"]["id"] for hit in hits] == [ids(items)[5]]
            assert code(await bench.own.search({**request, "filter": {"n": {"$regex": "5"}}})) == "UNSUPPORTED_FILTER"

    async def test_an_unknown_strategy_is_refused_with_the_known_ones(
        self, bench: Bench, strategies: Sequence[str]
    ) -> None:
        if not strategies:
            return
        result = await bench.own.search({"query": "x", "strategy": "no-such-strategy"})
        assert code(result) == "UNSUPPORTED_STRATEGY"
        assert result.error is not None
        for strategy in strategies:
            assert strategy in result.error.message


def _independent(strategies: Sequence[str]) -> list[str]:
    """Strategies that find by the text alone; a graph search finds by relations, which these memories have not."""
    return [strategy for strategy in strategies if strategy != "graph"]


async def _found(memory: Memory, query: str, **request: str) -> str | None:
    hits = (await memory.search({"query": query, **request})).unwrap()
    return hits[0]["memory"]["id"] if hits else None
