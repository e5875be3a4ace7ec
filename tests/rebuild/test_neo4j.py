"""The graph written anew in place: every object under the rebuild's mark, the rest looked up and swept."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from memplane.outbox.events import Target
from memplane.rebuild import RebuildFailed, Report, rebuild_neo4j, runs
from memplane.rebuild.neo4j_marks import Marks
from memplane.rebuild.neo4j_sweep import ORPHAN_FLOOR, sweep
from memplane.rebuild.report import Progress, Stage
from memplane.settings import RebuildSettings
from memplane.signal import Signal
from tests.rebuild.world import World

pytestmark = pytest.mark.timeout(300)


async def rebuild(world: World, **options: Any) -> Report:
    settings = RebuildSettings(**{"page_size": 25, **options.pop("settings", {})})
    return await rebuild_neo4j(world.database, world.neo4j, settings, **options)


async def filled(world: World) -> list[str]:
    """Memories with relations, some of them changed or deleted; the graph has them all."""
    hubs = await world.write(3)
    ids = await world.write(60, about=hubs, start=10)
    await world.update(ids[:20], "changed")
    await world.delete([*ids[50:], hubs[2]])
    await world.drained(Target.NEO4J)
    return [*hubs[:2], *ids[:50]]


async def test_a_graph_spoiled_by_hand_becomes_what_it_was(world: World) -> None:
    async with world.working(Target.NEO4J):
        live = await filled(world)
        before = await world.dump_neo4j()
        assert len(before.nodes) == len(live)
        a, b, c = (int(one) for one in live[5:8])
        for query in (
            "MATCH (m:Memory {backend: $backend, memory_id: $a}) SET m.category = 'edited', m.extra = 1",
            "MATCH (m:Memory {backend: $backend, memory_id: $b}) DETACH DELETE m",
            "MATCH (m:Memory {backend: $backend, memory_id: $c})-[r:RELATES]->() DELETE r",
            "CREATE (:Memory {backend: $backend, memory_id: 900000, version: 1, tenant: 'acme', user_id: 'ann'})",
            "CREATE (:Memory {backend: $backend, name: 'nobody'}), (:Memory {backend: $backend, memory_id: 'text'})",
            """
            MATCH (s:Memory {backend: $backend, memory_id: $a}), (t:Memory {backend: $backend, memory_id: $c})
            CREATE (s)-[:RELATES {backend: $backend, type: 'invented', version: 1, relation_hash: 'x'}]->(t)
            """,
            "CREATE (:Memory {backend: 'another', memory_id: $a, rebuild: 1})",
        ):
            await world.cypher(query, a=a, b=b, c=c)
        try:
            report = await rebuild(world)
            assert (report.state, report.copied, report.swept) == ("completed", len(live), 3)
            assert await world.dump_neo4j() == before, "properties, relations, and no mark is left"
            assert await world.equals(Target.NEO4J) == {}
            foreign = await world.cypher("MATCH (m:Memory {backend: 'another'}) RETURN m.rebuild AS mark")
            assert [row["mark"] for row in foreign] == [1], "another backend's is left alone"
        finally:
            await world.cypher("MATCH (m:Memory {backend: 'another'}) DETACH DELETE m")

        # Nothing is left at all: the same state comes back.
        await world.cypher("MATCH (m:Memory {backend: $backend}) DETACH DELETE m")
        await rebuild(world)
        assert await world.dump_neo4j() == before


async def test_readers_and_writers_go_on(world: World) -> None:
    async with world.working(Target.NEO4J):
        live = await filled(world)
        done, looked = asyncio.Event(), 0
        kept, changing = {int(one) for one in live[:30]}, live[30:]

        async def write() -> None:
            number = 0
            while not done.is_set():
                await world.update([changing[number % 10]], f"again {number}")
                await world.write(1, about=live[:2], start=2000 + number)
                if number < 8:
                    await world.delete([changing[10 + number]])
                number += 1
                await asyncio.sleep(0.02)

        async def relations() -> dict[int, int]:
            rows = await world.cypher(
                "MATCH (m:Memory {backend: $backend}) WHERE m.version IS NOT NULL"
                " RETURN m.memory_id AS id, COUNT { (m)-[:RELATES]->() } AS relations"
            )
            return {row["id"]: row["relations"] for row in rows if row["id"] in kept}

        before = await relations()
        assert (len(before), max(before.values())) == (30, 2)

        async def read() -> None:
            nonlocal looked
            while not done.is_set():
                assert await relations() == before
                looked += 1
                await asyncio.sleep(0.01)

        tasks = [asyncio.create_task(write()), asyncio.create_task(read())]
        try:
            report = await rebuild(world, settings={"rate": 60})
        finally:
            done.set()
            await asyncio.gather(*tasks)
        assert (report.state, looked > 10) == ("completed", True)
        await world.drained(Target.NEO4J)
        assert await world.equals(Target.NEO4J) == {}
        assert await world.cypher("MATCH (m:Memory {backend: $backend}) WHERE m.rebuild IS NOT NULL RETURN m") == []


async def test_it_goes_on_at_each_stage_where_it_was_cancelled(world: World) -> None:
    async with world.working(Target.NEO4J):
        await filled(world)
        before = await world.dump_neo4j()
        reports: list[Report] = []
        for stage in (Stage.FILL, Stage.SWEEP, Stage.UNMARK, Stage.VERIFY):
            stop = Signal()

            def at(progress: Progress, stage: Stage = stage, stop: Signal = stop) -> None:
                if progress.stage is stage:
                    stop.abort()

            reports.append(await rebuild(world, signal=stop, progress=at))
            assert reports[-1].state == "cancelled"
        reports.append(await rebuild(world))
        assert [report.run_id for report in reports] == [reports[0].run_id] * 5
        assert (reports[-1].state, reports[-1].resumed) == ("completed", 4)
        assert await world.dump_neo4j() == before


async def test_more_nodes_without_a_memory_than_a_restored_truth_explains_stop_it(world: World) -> None:
    async with world.working(Target.NEO4J):
        await world.write(20)
        await world.drained(Target.NEO4J)
        before = await world.dump_neo4j()
        extra = ORPHAN_FLOOR + 10
        await world.cypher(
            "UNWIND range(1, $extra) AS i CREATE (:Memory {backend: $backend, memory_id: 800000 + i, version: 1})",
            extra=extra,
        )
        with pytest.raises(RebuildFailed, match="none of them was touched"):
            await rebuild(world)
        [row] = await world.cypher("MATCH (m:Memory {backend: $backend}) RETURN count(*) AS nodes")
        assert row["nodes"] == 20 + extra
        report = await rebuild(world, allow_orphans=True)
        assert report.swept == extra
        assert await world.dump_neo4j() == before


async def test_what_an_event_is_about_to_remove_is_no_orphan(world: World) -> None:
    """A bulk delete beside a rebuild must not look like a wrong database."""
    async with world.working(Target.NEO4J):
        ids = await world.write(ORPHAN_FLOOR + 10)
        await world.drained(Target.NEO4J)
    await world.delete(ids)
    async with world.database.transaction() as connection:
        run = await runs.begin(connection, world.database, Target.NEO4J, Stage.SWEEP)
    projection = world.projection(Target.NEO4J)
    marks = Marks(world.neo4j, (await projection.generation()).backend, run.id)
    swept = await sweep(
        world.database, marks, run, RebuildSettings(), allow_orphans=False, signal=Signal(), progress=lambda _: None
    )
    assert swept is not None
    assert (len(swept.orphans), swept.repaired, swept.nameless) == (0, 0, 0)
    await projection.close()
