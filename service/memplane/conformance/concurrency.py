"""Several writers at once: one wins, nobody's change is lost silently, a cancelled batch is whole or absent."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from memplane.conformance.base import Bench, ConformanceBase, code, everything, ids, write

WRITERS = 12


class ConcurrencyConformance(ConformanceBase):
    async def test_one_of_many_updates_of_one_version_wins(self, bench: Bench) -> None:
        [item] = await write(bench.own, {"content": "start"})
        results = await asyncio.gather(
            *(
                bench.own.update(
                    {"memories": [{"id": item["id"], "content": number, "expectedVersion": item["version"]}]}
                )
                for number in range(WRITERS)
            )
        )
        codes = sorted(code(result) for result in results)
        assert codes == ["CONFLICT"] * (WRITERS - 1) + ["success"]
        [read] = (await bench.own.get({"ids": [item["id"]]})).unwrap()
        winner = next(result.unwrap()[0] for result in results if result.error is None)
        assert read == winner
        assert read["version"] == item["version"] + 1

    async def test_no_update_without_expectation_is_lost(self, bench: Bench) -> None:
        [item] = await write(bench.own, {"content": 0})
        results = await asyncio.gather(
            *(bench.own.update({"memories": [{"id": item["id"], "content": number}]}) for number in range(WRITERS))
        )
        versions = sorted(result.unwrap()[0]["version"] for result in results)
        assert versions == [item["version"] + number for number in range(1, WRITERS + 1)]

    async def test_one_of_many_writes_of_one_key_wins(self, bench: Bench) -> None:
        results = await asyncio.gather(
            *(bench.own.write({"memories": [{"key": "k", "content": number}]}) for number in range(WRITERS))
        )
        assert sorted(code(result) for result in results) == ["CONFLICT"] * (WRITERS - 1) + ["success"]
        assert len(await everything(bench.own)) == 1

    async def test_one_of_many_deletes_reports_the_id(self, bench: Bench) -> None:
        [item] = await write(bench.own, {"content": 1})
        results = await asyncio.gather(*(bench.own.delete({"ids": [item["id"]]}) for _ in range(WRITERS)))
        assert [memory_id for result in results for memory_id in result.unwrap()["deleted"]] == [item["id"]]

    async def test_batches_in_opposite_order_do_not_block_each_other(self, bench: Bench) -> None:
        items = await write(bench.own, *({"content": number} for number in range(10)))
        forward = [{"id": memory_id, "content": "forward"} for memory_id in ids(items)]
        backward = [{"id": memory_id, "content": "backward"} for memory_id in reversed(ids(items))]
        results = await asyncio.gather(
            *(bench.own.update({"memories": entries}) for entries in [forward, backward] * 4)
        )
        assert [code(result) for result in results] == ["success"] * 8
        if bench.atomic:
            assert len({str(item["content"]) for item in await everything(bench.own)}) == 1

    @pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8, 13, 21, 34, 55])
    async def test_a_cancelled_batch_is_whole_or_absent(self, bench: Bench, turns: int) -> None:
        drafts = [{"key": f"k{number}", "content": number} for number in range(50)]
        task = asyncio.create_task(bench.own.write({"memories": drafts}))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        count = len(await everything(bench.own))
        assert count <= 50
        if bench.atomic:
            assert count in (0, 50)
        # The store still works, on the same keys, too.
        await bench.own.delete({"ids": ids(await everything(bench.own))})
        assert len(await write(bench.own, *drafts)) == 50
