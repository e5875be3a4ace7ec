"""A new generation of Milvus from PostgreSQL alone, while writers, workers and searches go on."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from memplane.contracts import CallOptions
from memplane.errors import IdentityError
from memplane.outbox.events import Target
from memplane.projections.errors import ProjectionMissing
from memplane.projections.generation import Generation, read_generation
from memplane.rebuild import RebuildRefused, abort, drop_retired, end_grace
from memplane.rebuild.report import Progress, Stage
from memplane.signal import Signal
from tests.outbox.world import execute
from tests.projections.support import Letters
from tests.rebuild.world import NO_OPTIONS, World

pytestmark = pytest.mark.timeout(300)


async def active(world: World) -> Generation:
    found = await read_generation(world.database, Target.MILVUS)
    assert found is not None
    return found


def asking(text: str, limit: int = 3) -> Any:
    return {"query": {"text": text}, "strategy": "vector", "limit": limit}


async def versions(world: World, ids: list[str]) -> dict[str, int]:
    return {item["id"]: item["version"] for item in await world.store.get({"ids": ids, "keys": []}, NO_OPTIONS)}


async def test_a_rebuild_gives_the_same_state_without_a_model_call(world: World) -> None:
    async with world.working(Target.MILVUS):
        ids = await world.write(120)
        await world.update(ids[:20], "changed")
        await world.delete(ids[100:])
        await world.drained(Target.MILVUS)
        before = await active(world)
        held = await world.dump_milvus(before)
        world.provider.failure = RuntimeError("a rebuild of what is stored needs no model")
        report = await world.rebuild()
        after = await active(world)
        assert (report.state, report.copied, report.collection) == ("completed", 100, after.collection)
        assert report.retired == before.collection != after.collection
        assert await world.dump_milvus(after) == held
        assert len(held) == 100
        assert await world.equals(Target.MILVUS) == {}

        # A collection that is gone with all it held: the same state comes back.
        await world.milvus.call("drop_collection", after.collection)
        await world.rebuild()
        again = await active(world)
        assert await world.dump_milvus(again) == held
        assert await world.equals(Target.MILVUS) == {}

    assert await drop_retired(world.database, world.milvus) == [], "their time of grace is not over"
    await end_grace(world.database)
    dropped = await drop_retired(world.database, world.milvus)
    assert set(dropped) == {before.collection, after.collection}
    assert await drop_retired(world.database, world.milvus) == []
    assert not await world.milvus.call("has_collection", before.collection)
    assert await world.dump_milvus(again) == held


async def test_service_and_writers_go_on_during_a_rebuild_to_another_model(world: World) -> None:
    """Searches by a process that nobody restarts never miss an acknowledged memory, and nothing fails."""
    old, new = world.provider, Letters(16, model="newer")
    async with world.working(Target.MILVUS):
        first = await world.write(200)
        await world.drained(Target.MILVUS)
    known = await versions(world, first)
    search = world.searches(new, old)
    acknowledged = [(memory_id, f"memory number {number}") for number, memory_id in enumerate(first)]
    done, searched = asyncio.Event(), 0

    async def write() -> None:
        for number in itertools.count(1000):
            if done.is_set():
                return
            [memory_id] = await world.write(1, start=number)
            acknowledged.append((memory_id, f"memory number {number}"))
            if number % 5 == 0:
                await world.update([memory_id], "changed")
            await asyncio.sleep(0.05)

    async def read() -> None:
        nonlocal searched
        for place in itertools.count(step=7):
            if done.is_set():
                return
            # The newest as often as one that was copied long ago.
            memory_id, text = acknowledged[-1 if place % 2 else place % len(acknowledged)]
            hits = await search.search(asking(text), CallOptions())
            assert memory_id in [hit["memory"]["id"] for hit in hits], f"{memory_id} is missing"
            searched += 1

    async with world.working(world.projection(provider=new, previous=old)):
        tasks = [asyncio.create_task(write()), asyncio.create_task(read()), asyncio.create_task(read())]
        try:
            report = await world.rebuild(new, settings={"rate": 400})
            await asyncio.sleep(2)
        finally:
            done.set()
            await asyncio.gather(*tasks)
        await world.drained(Target.MILVUS)
        asked = len(old.embedded)
        assert (await search.search(asking("memory number 7", 1), CallOptions()))[0]["memory"]["id"] == first[7]
        assert len(old.embedded) == asked, "after the switch the old model is not asked any more"
        assert (report.state, searched > 20) == ("completed", True)
        now = await active(world)
        assert (now.collection, now.model, now.dimensions) == (report.collection, "newer", 16)
        assert len(await world.dump_milvus(now)) == len(acknowledged)
        assert await world.equals(Target.MILVUS, new) == {}
    assert await versions(world, first) == known, "memories keep their versions"


async def test_two_at_once_are_refused_and_an_aborted_one_leaves_nothing(world: World) -> None:
    async with world.working(Target.MILVUS):
        await world.write(150)
        await world.drained(Target.MILVUS)
        before = await active(world)
        inside = asyncio.Event()
        stop = Signal()

        def watch(progress: Progress) -> None:
            assert progress.stage is Stage.FILL
            inside.set()

        one = asyncio.create_task(
            world.rebuild(settings={"rate": 40, "page_size": 20, "concurrency": 1}, progress=watch, signal=stop)
        )
        await asyncio.wait_for(inside.wait(), 60)
        with pytest.raises(RebuildRefused, match="is running"):
            await world.rebuild()
        stop.abort()
        first = await one
        assert first.state == "cancelled"
        with pytest.raises(RebuildRefused, match="vectors of model 'letters'"):
            await world.rebuild(Letters(16, model="newer"))
        built = await world.generation(first.generation)
        written = await world.dump_milvus(built)
        assert 0 < len(written) < 150

        ended = await abort(world.database, world.milvus, Target.MILVUS)
        assert ended is not None
        assert (ended.collection, ended.switched) == (built.collection, False)
        assert await abort(world.database, world.milvus, Target.MILVUS) is None
        await world.write(5, start=500)
        await world.drained(Target.MILVUS)
        assert not await world.milvus.call("has_collection", built.collection)
        with pytest.raises(ProjectionMissing):
            await world.dump_milvus(built)
        assert (await active(world)) == before
        assert len(await world.dump_milvus(before)) == 155
        assert await world.equals(Target.MILVUS) == {}


async def test_a_cancelled_rebuild_goes_on_where_it_stopped(world: World) -> None:
    async with world.working(Target.MILVUS):
        await world.write(120)
        await world.drained(Target.MILVUS)
        stop = Signal()
        first = await world.rebuild(
            settings={"page_size": 20, "concurrency": 1}, signal=stop, progress=lambda _: stop.abort()
        )
        assert (first.state, first.copied) == ("cancelled", 20)
        second = await world.rebuild()
        assert (second.run_id, second.state, second.copied) == (first.run_id, "completed", 100)
        assert second.resumed == 1
        assert len(await world.dump_milvus(await active(world))) == 120


async def test_settings_that_name_neither_model_are_refused_with_the_way_out(world: World) -> None:
    async with world.working(Target.MILVUS):
        await world.write(1)
        await world.drained(Target.MILVUS)
    changed = world.projection(provider=Letters(16, model="newer"))
    try:
        with pytest.raises(IdentityError, match=r"embedding_previous and run `memplane rebuild milvus`"):
            await changed.start()
    finally:
        await changed.close()


async def test_what_cannot_be_projected_keeps_it_from_switching(world: World) -> None:
    """Unless it is accepted: then the other memories are there, and the dead event says why."""
    async with world.working(Target.MILVUS):
        ids = await world.write(30)
        await world.drained(Target.MILVUS)
        # Metadata beyond what Milvus holds, past the store's own check.
        await execute(
            world.database,
            "UPDATE {schema}.long_term_memory SET metadata = jsonb_build_object('x', repeat('y', 70000)),"
            " version = version + 1 WHERE id = $1",
            int(ids[3]),
        )
        with pytest.raises(Exception, match="cannot be projected"):
            await world.rebuild()
        report = await world.rebuild(accept_ineffective=True)
        assert report.state == "completed"
        held = await world.dump_milvus(await active(world))
        assert set(held) == {int(one) for one in ids} - {int(ids[3])}
