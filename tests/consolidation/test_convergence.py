"""Consolidation and purge with the real Milvus and Neo4j: whatever happens, both end equal to the truth.

Killed with SIGKILL around their commits, they leave whole transactions.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from typing import Any

import pytest

from memplane.outbox.enqueue import Repair, enqueue_repairs
from memplane.outbox.events import Family, ProjectionTarget, Target
from memplane.projections.milvus import MilvusProjection
from memplane.projections.neo4j import Neo4jProjection
from memplane.reconcile import reconcile
from memplane.schema.database import Database
from memplane.settings import PostgresSettings
from tests.consolidation.world import User, job
from tests.crash.support import ROOT, plain
from tests.projections.conftest import milvus, neo4j, provider
from tests.projections.support import graph, rows
from tests.purge.world import PROJECTIONS, Yard
from tests.reconcile.support import cypher, drain

__all__ = ["milvus", "neo4j", "provider"]


class Plane:
    """One backend with both projections, whose events are worked off by hand."""

    def __init__(self, yard: Yard, milvus: MilvusProjection, neo4j: Neo4jProjection) -> None:
        self.yard, self.milvus, self.neo4j = yard, milvus, neo4j
        self.targets: tuple[ProjectionTarget, ...] = (milvus, neo4j)

    async def drained(self) -> None:
        for target in self.targets:
            await drain(self.yard.database, target)

    async def drift(self) -> dict[str, int]:
        """What full audits of both find."""
        found: dict[str, int] = {}
        for target in self.targets:
            report = await reconcile(self.yard.database, target, mode="audit")
            assert report.state == "completed"
            found |= report.mismatches
        return found

    async def converged(self) -> None:
        """No difference, and the targets hold exactly the living."""
        await self.drained()
        assert await self.drift() == {}
        alive = set(await self.yard.items())
        assert set(await rows(self.milvus)) == alive
        nodes, _ = await graph(self.neo4j, (await self.neo4j.generation()).backend)
        assert set(nodes) == alive


@pytest.fixture
async def plane(database: Database, milvus: MilvusProjection, neo4j: Neo4jProjection) -> Plane:
    await milvus.start()
    await neo4j.start()
    return Plane(Yard(database, targets=PROJECTIONS), milvus, neo4j)


async def populated(user: User) -> None:
    """Duplicates with relations among each other, from outside, and to outside; one important memory."""
    one, two, _, four = await user.write("a", "a", "b", "b")
    await user.update(two, metadata={"relations": [{"type": "likes", "target": str(four)}]})
    await user.update(four, metadata={"relations": [{"type": "back", "target": str(one)}], "tags": ["x"]})
    relations = [{"type": "cites", "target": str(number)} for number in (two, four)]
    await user.write("points", relations=relations)
    await user.write("important", importance=0.9)
    await user.write("c", "c", "d", "d", "e", "e")
    await user.age(86400)


async def test_what_is_merged_decays_and_expires_reaches_both_targets(plane: Plane) -> None:
    yard = plane.yard
    await populated(yard)
    await plane.drained()
    report = await yard.consolidate(job("exact", "decay", batch_size=4))
    assert report.by_rule == {"exact": 5, "decay": 1}
    await plane.converged()
    assert {(kind) for _, kind, _ in await yard.edges()} == {"likes", "back", "cites"}


async def test_near_duplicates_by_the_embeddings_that_the_worker_stored(plane: Plane) -> None:
    yard = plane.yard
    await yard.write("same words", "same words", "other words")
    await plane.drained()
    assert (await yard.consolidate(job("near", near_threshold=0.999))).by_rule == {"near": 1}
    await plane.converged()


async def test_a_purged_memory_does_not_come_back_by_late_events(plane: Plane) -> None:
    """An upsert, a delete and a repair of it arrive when its row is gone."""
    yard = plane.yard
    (gone,) = await yard.write("gone", importance=0.5)
    (stays,) = await yard.write("stays", relations=[{"type": "x", "target": str(gone)}])
    await plane.drained()
    await yard.delete(gone)
    await plane.drained()
    await yard.pass_time(4000)
    assert (await yard.purge()).tombstones == {"no_full_run": 1}
    assert await plane.drift() == {}
    assert (await yard.purge()).removed["tombstones"] == 1
    assert await yard.ids() == {stays}
    for target in PROJECTIONS:
        for version in (1, 2):
            await yard.rows(
                "INSERT INTO {schema}.memory_outbox"
                " (event_id, aggregate_id, user_id, tenant, aggregate_version, event_type, target, payload)"
                " VALUES (gen_random_uuid(), $1, 'ann', 'acme', $2, $3, $4, '{\"operation\": \"upsert\"}')",
                gone,
                version,
                "upsert_memory_vector" if target is Target.MILVUS else "upsert_memory_graph_node",
                target.value,
            )
            await plane.converged()
        async with yard.database.transaction() as connection:
            repairs = [Repair(target, gone, "acme", "ann", 1, "upsert", Family.NODE)]
            assert await enqueue_repairs(connection, yard.database, repairs) == 1
        await plane.converged()


async def test_what_a_run_meets_in_a_target_is_not_purged_until_another_run_does_not(plane: Plane) -> None:
    yard = plane.yard
    (gone,) = await yard.write("gone")
    await plane.drained()
    await yard.delete(gone)
    await plane.drained()
    await yard.pass_time(4000)
    await yard.purge()
    await cypher(plane.neo4j, "CREATE (:Memory {backend: $backend, memory_id: $id, version: 1})", id=gone)
    assert await plane.drift() == {"orphan": 1}
    assert (await yard.purge()).tombstones == {"named_by_a_run": 1}
    for target in plane.targets:
        await reconcile(yard.database, target, mode="repair")
    await plane.drained()
    assert (await yard.purge()).removed.get("tombstones", 0) == 0
    assert await plane.drift() == {}
    assert (await yard.purge()).removed["tombstones"] == 1


async def test_purges_beside_writers_workers_and_reconciliation(plane: Plane) -> None:
    yard = plane.yard
    old = await yard.write(*(f"old {number}" for number in range(30)))
    await plane.drained()
    await yard.delete(*old[:20])
    await plane.drained()
    await yard.pass_time(4000)
    done = asyncio.Event()

    async def writers() -> None:
        for number in range(15):
            (memory,) = await yard.write(f"new {number}")
            await yard.update(memory, metadata={"relations": [{"type": "x", "target": str(old[20 + number % 5])}]})
            await yard.delete(old[25 + number % 5])
        done.set()

    async def workers() -> None:
        while not done.is_set():
            await plane.drained()
            await asyncio.sleep(0.05)

    async def reconciler() -> None:
        while not done.is_set():
            for target in plane.targets:
                await reconcile(yard.database, target, mode="repair")

    async def purges() -> int:
        removed = 0
        while not done.is_set():
            removed += (await yard.purge()).removed.get("tombstones", 0)
            await asyncio.sleep(0.05)
        return removed

    counts = await asyncio.gather(writers(), workers(), reconciler(), purges())
    await plane.converged()
    removed = int(counts[-1] or 0) + (await yard.purge()).removed.get("tombstones", 0)
    assert removed == 20
    await plane.converged()


# SIGKILL -------------------------------------------------------------------------------------------------------------


async def killed(postgres: PostgresSettings, orders: dict[str, Any]) -> bool:
    """Run a child; True when it killed itself, False when it came to its end before."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.consolidation.child",
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        text = json.dumps({"postgres": plain(postgres), "targets": list(PROJECTIONS), **orders})
        async with asyncio.timeout(120):
            _, errors = await child.communicate(text.encode())
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    assert child.returncode in (0, -signal.SIGKILL), errors.decode(errors="replace")
    return child.returncode != 0


async def merged(yard: Yard) -> tuple[int, int, int]:
    """Tombstones with a successor, entries of the chain, and memories with an event of a delete: always the same."""
    (row,) = await yard.rows(
        "SELECT (SELECT count(*) FROM {schema}.long_term_memory WHERE superseded_by IS NOT NULL) AS tombstones,"
        " (SELECT count(*) FROM {schema}.memory_supersedes) AS chain,"
        " (SELECT count(DISTINCT aggregate_id) FROM {schema}.memory_outbox WHERE event_type = 'delete_memory_vector')"
        " AS events"
    )
    return row["tombstones"], row["chain"], row["events"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("point", ["before_commit", "after_commit"])
async def test_a_consolidation_killed_around_its_commits(
    plane: Plane, postgres_settings: PostgresSettings, point: str
) -> None:
    yard = plane.yard
    await populated(yard)
    await plane.drained()
    orders = {"role": "consolidate", "point": point, "times": 2, "user": "ann"}
    done = [await merged(yard)]
    assert await killed(postgres_settings, orders)
    done.append(await merged(yard))
    tombstones, chain, events = done[-1]
    assert tombstones == chain == events
    await plane.converged()
    assert done[1][0] > done[0][0], "the first transaction stays, whatever becomes of the second"
    await yard.consolidate(job("exact", "decay"))
    assert (await merged(yard))[0] == 5
    await plane.converged()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("point", ["before_commit", "after_commit"])
async def test_a_purge_killed_around_its_commits(plane: Plane, postgres_settings: PostgresSettings, point: str) -> None:
    yard = plane.yard
    gone = await yard.write(*(f"gone {number}" for number in range(12)))
    (stays,) = await yard.write("stays")
    await plane.drained()
    await yard.delete(*gone)
    await plane.drained()
    await yard.pass_time(4000)
    await yard.purge()
    assert await plane.drift() == {}
    left = {len(await yard.ids())}
    # Transactions come in batches of five: nothing is left to settle, so the first removes tombstones.
    for times in (1, 2):
        assert await killed(postgres_settings, {"role": "purge", "point": point, "times": times})
        left.add(len(await yard.ids()))
        await plane.converged()
    assert left <= {13, 8, 3, 1}
    assert len(left) > 1
    assert (await yard.purge()).removed.get("tombstones", 0) == min(left) - 1
    assert await yard.ids() == {stays}
    await plane.converged()
