"""A rebuild killed with SIGKILL at each stage goes on, while writers and workers do, and ends in the same state."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from typing import Any

import pytest

from memplane.outbox.events import Target
from memplane.projections.generation import read_generation
from memplane.rebuild import RebuildRefused, Report, rebuild_neo4j
from memplane.settings import RebuildSettings
from tests.crash.support import plain
from tests.outbox.world import execute
from tests.rebuild.world import World

pytestmark = pytest.mark.timeout(400)

MILVUS_STAGES = [("fill", 1), ("fill", 4), ("repair", 1), ("switched", 1), ("verify", 1)]
NEO4J_STAGES = [("fill", 2), ("sweep", 1), ("unmark", 1), ("verify", 1)]
EACH = pytest.mark.full
"""Every stage takes a minute or two; a few of them are enough for every day."""


async def kill(world: World, target: Target, stage: str, times: int) -> None:
    """Run a rebuild in a process that kills itself there; the hold of the one before has run out."""
    await execute(world.database, "UPDATE {schema}.rebuild_run SET held_until = now() WHERE state = 'unfinished'")
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.rebuild.child",
        stdin=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    orders = {
        "target": target.value,
        "stage": stage,
        "times": times,
        "postgres": plain(world.database.settings),
        "milvus": plain(world.milvus_settings),
        "neo4j": plain(world.neo4j_settings),
    }
    _, errors = await asyncio.wait_for(child.communicate(json.dumps(orders).encode()), 120)
    assert child.returncode == -signal.SIGKILL, (stage, child.returncode, errors.decode()[-2000:])


async def go_on(world: World, target: Target) -> Report:
    """Run it again; refused for as long as the dead one's hold lasts."""
    async with asyncio.timeout(30):
        while True:
            try:
                if target is Target.MILVUS:
                    return await world.rebuild()
                return await rebuild_neo4j(world.database, world.neo4j, RebuildSettings(page_size=20))
            except RebuildRefused:
                await asyncio.sleep(0.5)


async def _run(world: World, target: Target, stages: list[tuple[str, int]], dump: Any) -> None:
    async with world.working(target):
        hubs = await world.write(2)
        await world.write(118, about=hubs, start=10)
        await world.drained(target)
        before = await dump()
        resumed = 0
        for stage, times in stages:
            await kill(world, target, stage, times)
            resumed += 1
            if stage == "switched":
                # What is left is the comparison, which the next process makes.
                report = await go_on(world, target)
                assert (report.state, report.copied) == ("completed", 0)
                resumed = 0
        report = await go_on(world, target)
        assert report.state == "completed"
        assert await dump() == before
        [memory_id] = await world.write(1, start=900)
        await world.drained(target)
        assert await world.equals(target) == {}
        await world.delete([memory_id])
        await world.drained(target)
        assert await dump() == before


@pytest.mark.parametrize(
    "stages", [[("fill", 2), ("switched", 1)], pytest.param(MILVUS_STAGES, marks=EACH)], ids=["some", "each"]
)
async def test_milvus_killed_at_stages(world: World, stages: list[tuple[str, int]]) -> None:
    async def dump() -> Any:
        generation = await read_generation(world.database, Target.MILVUS)
        assert generation is not None
        return await world.dump_milvus(generation)

    await _run(world, Target.MILVUS, stages, dump)


@EACH
async def test_neo4j_killed_at_stages(world: World) -> None:
    await _run(world, Target.NEO4J, NEO4J_STAGES, world.dump_neo4j)
