"""Searches beside deletes and projections: what was gone before a search began is in no answer."""

from __future__ import annotations

import asyncio

import pytest

from tests.plugins.search.world import World, ids

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_search_never_shows_what_was_deleted_before_it_began(world: World) -> None:
    items = await world.write(*(f"octopus number {n}" for n in range(60)))
    await world.project()
    gone: set[str] = set()
    backend = world.search_backend()

    async def delete() -> None:
        for item in items[:40]:
            await world.delete(item["id"])
            gone.add(item["id"])
            await asyncio.sleep(0)

    async def look(strategy: str) -> None:
        for _ in range(8):
            before = set(gone)
            hits = ids(await world.search("octopus number 7", strategy=strategy, limit=15, backend=backend))
            assert not before & set(hits), strategy
            assert len(hits) == len(set(hits)) == 15, (strategy, len(hits))

    deleting = asyncio.create_task(delete())
    await asyncio.gather(deleting, *(look(s) for s in ("vector", "keyword", "hybrid")), world.drain(world.milvus))
    await world.project()
    assert set(ids(await world.search("octopus number", limit=60, backend=backend))) == {i["id"] for i in items[40:]}
