"""Decision 0018, case by case: whoever misses the new generation is covered by what copies the truth into it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from memplane.contracts import CallOptions
from memplane.errors import TargetUnavailable
from memplane.outbox.events import Family, Outcome, Target, Task
from memplane.outbox.putback import reclaim_expired
from memplane.outbox.retry import RetryPolicy
from memplane.projections.generation import Generation, read_generation, read_written
from memplane.projections.milvus import MilvusProjection
from memplane.projections.milvus_client import MilvusConnection
from memplane.rebuild import abort, generations, runs
from memplane.rebuild.pages import Page, copy_page
from memplane.rebuild.report import Stage
from memplane.rebuild.runs import Run
from tests.outbox.world import execute, expire_leases, quick, rows
from tests.projections.support import Letters, stored_embeddings
from tests.projections.support import task as made_task
from tests.projections.support import truth as made_truth
from tests.rebuild.world import World
from tests.reconcile.support import drain

pytestmark = pytest.mark.timeout(300)


class Slow(MilvusConnection):
    """Stops before its next upsert until it may go on."""

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self.reached, self.may_go = asyncio.Event(), asyncio.Event()

    async def call(self, method: str, *args: object, timeout: float | None = None, **kwargs: object) -> Any:
        if method == "upsert" and not self.may_go.is_set():
            self.reached.set()
            await self.may_go.wait()
        return await super().call(method, *args, timeout=timeout, **kwargs)


class Breaking(MilvusConnection):
    """Refuses upserts into one collection."""

    def __init__(self, settings: Any, collection: str) -> None:
        super().__init__(settings)
        self._collection = collection

    async def call(self, method: str, *args: object, timeout: float | None = None, **kwargs: object) -> Any:
        if method == "upsert" and args[0] == self._collection:
            raise TargetUnavailable("milvus", "scripted")
        return await super().call(method, *args, timeout=timeout, **kwargs)


class Between:
    """A projection that lets something happen before it projects: the page that it is given is old by then."""

    def __init__(self, projection: MilvusProjection, happening: Callable[[], Awaitable[object]]) -> None:
        self._projection = projection
        self._happening = happening
        self.name = projection.name
        self.needs = projection.needs

    async def project(self, tasks: Sequence[Task], *, timeout: float) -> Sequence[Outcome]:
        # What the page's own read of the target would save is what this is not about.
        await self._happening()
        repairing = [made_task(task.truth, repair=True) for task in tasks]
        return await self._projection.project(repairing, timeout=timeout)


async def begin(world: World) -> tuple[Run, Generation, MilvusProjection]:
    """A rebuild that has begun and copied nothing yet."""
    run, generation = await generations.begin(world.database, world.provider)
    pinned = MilvusProjection(
        world.database, world.milvus, stored_embeddings(world.database, world.provider), only=generation
    )
    await pinned.start()
    return run, generation, pinned


async def copy_all(world: World, ids: Sequence[str], target: Any) -> None:
    page = Page([int(one) for one in ids], max(int(one) for one in ids))
    await copy_page(world.database, target, page, Family.NODE, overwrite=False)


async def held(world: World, generation: Generation) -> dict[int, int]:
    return {number: row["version"] for number, row in (await world.dump_milvus(generation)).items()}


async def test_a_worker_that_read_the_truth_before_the_creation_and_sleeps_over_it(world: World) -> None:
    """Its truth is older than the row: it may write both, or the old one alone; the copy has what it misses."""
    slow = Slow(world.milvus_settings)
    sleeper = MilvusProjection(world.database, slow, stored_embeddings(world.database, world.provider))
    await sleeper.start()
    [memory_id] = await world.write(1)
    asleep = asyncio.create_task(drain(world.database, sleeper))
    # It has read the rows, none of which is `building`, and is about to write.
    await asyncio.wait_for(slow.reached.wait(), 30)
    _, generation, pinned = await begin(world)
    await copy_all(world, [memory_id], pinned)
    await world.update([memory_id], "changed meanwhile")
    old = await read_generation(world.database, Target.MILVUS)
    assert old is not None
    slow.may_go.set()
    # Its first event reaches the old generation alone; the second one, which is newer than the row, both.
    assert await asleep == 2
    assert await held(world, old) == {int(memory_id): 2}
    assert await held(world, generation) == {int(memory_id): 2}
    await sleeper.close()


async def test_an_event_is_processed_only_when_every_generation_has_it(world: World) -> None:
    worker = world.projection()
    await worker.start()
    _, generation, _ = await begin(world)
    [memory_id, other] = await world.write(2)
    assert await drain(world.database, worker) == 2
    assert await held(world, generation) == {int(memory_id): 1, int(other): 1}
    await world.delete([other])
    assert await drain(world.database, worker) == 1
    assert await held(world, generation) == {int(memory_id): 1}
    await worker.close()


async def test_a_worker_that_dies_between_two_generations_has_not_processed_its_event(world: World) -> None:
    worker = world.projection()
    await worker.start()
    _, generation, _ = await begin(world)
    old = await read_generation(world.database, Target.MILVUS)
    assert old is not None
    dying = MilvusProjection(
        world.database,
        Breaking(world.milvus_settings, generation.collection),
        stored_embeddings(world.database, world.provider),
    )
    [memory_id] = await world.write(1)
    with pytest.raises(TargetUnavailable):
        await drain(world.database, dying)
    assert await held(world, old) == {int(memory_id): 1}
    assert await held(world, generation) == {}
    [event] = await rows(world.database, "target = 'milvus'")
    assert event["status"] == "processing"
    await expire_leases(world.database)
    await reclaim_expired(world.database, Target.MILVUS, RetryPolicy.of(quick()))
    assert await drain(world.database, worker) == 1
    assert await held(world, generation) == {int(memory_id): 1}
    await dying.close()
    await worker.close()


async def test_a_worker_without_the_new_model_is_fenced_until_the_rebuild_is_gone(world: World) -> None:
    worker = world.projection()
    await worker.start()
    await generations.begin(world.database, Letters(16, model="newer"))
    with pytest.raises(TargetUnavailable, match="no setting names the model"):
        await worker.project([made_task(made_truth(1))], timeout=30)
    assert not await worker.healthy(), "so its events are given back, and nobody is charged"
    await abort(world.database, world.milvus, Target.MILVUS)
    assert await worker.healthy()
    await worker.project([made_task(made_truth(1))], timeout=30)
    await worker.close()


@pytest.mark.parametrize("change", ["update", "delete"])
async def test_a_page_that_was_overtaken_is_repaired(world: World, change: str) -> None:
    """Between the page's read and its write a worker brings something newer; the page's repair brings it again."""
    worker = world.projection()
    ids = await world.write(3)
    assert await drain(world.database, worker) == 3
    _, generation, pinned = await begin(world)

    async def happening() -> None:
        await (world.update([ids[1]], "newer") if change == "update" else world.delete([ids[1]]))
        assert await drain(world.database, worker) == 1

    await copy_all(world, ids, Between(pinned, happening))
    assert (await held(world, generation))[int(ids[1])] == 1, "the page has undone what the worker did"
    assert await drain(world.database, worker) == 1
    wanted = {int(one): 1 for one in ids} | {int(ids[1]): 2}
    if change == "delete":
        del wanted[int(ids[1])]
    assert await held(world, generation) == wanted
    await worker.close()


async def test_a_running_search_notices_the_switch_whatever_it_believed(world: World) -> None:
    worker, search = world.projection(), world.searches()
    [first] = await world.write(1)
    await drain(world.database, worker)

    async def found(text: str) -> list[str]:
        request: Any = {"query": {"text": text}, "strategy": "vector", "limit": 1}
        return [hit["memory"]["id"] for hit in await search.search(request, CallOptions())]

    assert await found("memory number 0") == [first]
    run, generation, pinned = await begin(world)
    await copy_all(world, [first], pinned)
    run.stage = Stage.REPAIR
    await runs.save(world.database, run)
    await generations.switch(world.database, run, generation, grace_seconds=600)
    [second] = await world.write(1, start=7)
    await drain(world.database, worker)
    # Long ago, so that nothing but the new generation knows it.
    await execute(world.database, "UPDATE {schema}.memory_outbox SET processed_at = now() - interval '1 hour'")
    assert await found("memory number 7") == [second]
    assert await found("memory number 0") == [first]
    assert [one.state for one in await read_written(world.database, Target.MILVUS, generation.backend)] == ["active"]
    await worker.close()
