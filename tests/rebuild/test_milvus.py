"""A new generation of Milvus from PostgreSQL alone, while writers, workers and searches go on."""

from __future__ import annotations

import asyncio

import pytest

from memplane.contracts import CallOptions
from memplane.outbox.events import Target
from memplane.projections.generation import read_generation
from tests.projections.support import Letters
from tests.rebuild.world import World

pytestmark = pytest.mark.timeout(300)


async def test_a_rebuild_gives_the_same_state_without_a_model_call(world: World) -> None:
    world.targets = [Target.MILVUS]
    world.__post_init__()
    async with world.working():
        ids = await world.write(120)
        await world.update(ids[:20], "changed")
        await world.delete(ids[100:])
        await world.drained()
        before = await read_generation(world.database, Target.MILVUS)
        assert before is not None
        held = await world.dump_milvus(before)
        world.provider.failure = RuntimeError("a rebuild of what is stored needs no model")
        report = await world.rebuild()
    world.provider.failure = None
    after = await read_generation(world.database, Target.MILVUS)
    assert after is not None
    assert (report.state, report.copied, report.collection) == ("completed", 100, after.collection)
    assert report.retired == before.collection != after.collection
    assert await world.dump_milvus(after) == held
    assert len(held) == 100
    assert await world.equals() == {}


async def test_service_and_writers_go_on_during_a_rebuild(world: World) -> None:
    """Searches by a process that nobody restarts never miss an acknowledged memory, and nothing fails."""
    world.targets = [Target.MILVUS]
    world.__post_init__()
    search = world.searches()
    acknowledged: list[tuple[str, str]] = []
    done = asyncio.Event()
    searched = 0

    async def write() -> None:
        number = 1000
        while not done.is_set():
            [memory_id] = await world.write(1, start=number)
            acknowledged.append((memory_id, f"memory number {number}"))
            number += 1
            if number % 5 == 0:
                await world.update([memory_id], "changed")
            await asyncio.sleep(0.05)

    async def read() -> None:
        nonlocal searched
        place = 0
        while not done.is_set():
            if not acknowledged:
                await asyncio.sleep(0.05)
                continue
            # The newest as often as one that may have been copied long ago.
            memory_id, text = acknowledged[-1 if searched % 2 else place % len(acknowledged)]
            place += 7
            request = {"query": {"text": text}, "strategy": "vector", "limit": 3}
            hits = await search.search(request, CallOptions())
            assert memory_id in [hit["memory"]["id"] for hit in hits], f"{memory_id} is missing"
            searched += 1

    async with world.working():
        await world.write(300)
        await world.drained()
        tasks = [asyncio.create_task(write()), asyncio.create_task(read()), asyncio.create_task(read())]
        try:
            report = await world.rebuild(settings={"rate": 200})
            await asyncio.sleep(3)
        finally:
            done.set()
            await asyncio.gather(*tasks)
        await world.drained()
    assert report.state == "completed"
    assert searched > 20
    assert len(acknowledged) > 10
    active = await read_generation(world.database, Target.MILVUS)
    assert active is not None
    assert active.collection == report.collection
    assert len(await world.dump_milvus(active)) == 300 + len(acknowledged)
    assert await world.equals() == {}


async def test_another_model_is_brought_in_while_the_old_one_serves(world: World) -> None:
    world.targets = [Target.MILVUS]
    world.__post_init__()
    old, new = world.provider, Letters(16, model="newer")
    async with world.working():
        ids = await world.write(60)
        await world.drained()
    search = world.searches(new, old)
    request = {"query": {"text": "memory number 7"}, "strategy": "vector", "limit": 1}
    assert (await search.search(request, CallOptions()))[0]["memory"]["id"] == ids[7]
    assert "memory number 7" not in new.embedded, "the question belongs to the generation that is searched"
    versions = {item["id"]: item["version"] for item in await world.store.get({"ids": ids, "keys": []}, CallOptions())}
    async with world.working(world.projection(provider=new, previous=old)):
        report = await world.rebuild(new)
        await world.drained()
    assert report.copied == 60
    asked = len(old.embedded)
    assert (await search.search(request, CallOptions()))[0]["memory"]["id"] == ids[7]
    assert len(old.embedded) == asked, "after the switch the old model is not asked any more"
    assert new.embedded.count("memory number 7") == 2, "once for the memory, once for the question"
    active = await read_generation(world.database, Target.MILVUS)
    assert active is not None
    assert (active.model, active.dimensions) == ("newer", 16)
    assert {item["id"]: item["version"] for item in await world.store.get({"ids": ids, "keys": []}, CallOptions())} == versions
    assert await world.equals(provider=new) == {}
