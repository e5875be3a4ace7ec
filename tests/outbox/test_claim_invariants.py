"""The invariants of `outbox/claim.py` with many concurrent claimers and writers.

The partial unique indexes would turn a breach into an error, and any error fails the test; beside that the test keeps
its own account of what is in flight and of which version each memory was projected with.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator

import pytest

from memplane.outbox.admin import replay
from memplane.outbox.claim import claim, complete, renew
from memplane.outbox.events import Event, Family, Needs, Target
from memplane.outbox.prune import prune_processed
from memplane.outbox.putback import Failure, fail, give_back, reclaim_expired
from memplane.outbox.retry import RetryPolicy
from memplane.outbox.truth import read_truths
from memplane.schema.database import Database
from memplane.settings import PostgresSettings
from tests.outbox.world import change, create, execute, make_due, rows

CLAIMS = 20_000
CLAIMERS, WRITERS, MEMORIES = 6, 4, 400
POLICY = RetryPolicy(base_seconds=0.01, max_seconds=0.02, max_attempts=2)


@pytest.fixture
async def wide(postgres_settings: PostgresSettings) -> AsyncIterator[Database]:
    """A pool on which all of them find a connection."""
    pool = Database(postgres_settings.model_copy(update={"pool_max": CLAIMERS + WRITERS + 6}))
    await pool.open()
    yield pool
    await pool.close()


class Storm:
    """Writers change few memories often; claimers end their claims in every possible way."""

    def __init__(self, database: Database, target: Target, seed: int) -> None:
        self.database = database
        self.target = target
        self.random = random.Random(seed)
        self.in_flight: dict[int, int] = {}
        self.claimed = 0
        self.projected: dict[tuple[int, Family], int] = defaultdict(int)
        self.written: dict[tuple[int, Family], int] = {}
        self.ends: dict[str, int] = defaultdict(int)
        self.memories: list[int] = []

    @property
    def enough(self) -> bool:
        return self.claimed >= CLAIMS

    async def writer(self) -> None:
        edges = self.target is Target.NEO4J
        while not self.enough:
            ids = self.random.sample(self.memories, 40)
            node, with_edges = self.random.choice([(True, False), (True, edges), (not edges, edges)])
            versions = await change(self.database, ids, targets=frozenset({self.target}), node=node, edges=with_edges)
            for memory_id, version in versions.items():
                for family, touched in ((Family.NODE, node), (Family.EDGES, with_edges)):
                    if touched:
                        key = (memory_id, family)
                        self.written[key] = max(version, self.written.get(key, 0))

    async def claimer(self) -> None:
        while not self.enough:
            if not await self.step(lease=self.random.choice([0.05, 30, 30, 30])):
                await asyncio.sleep(0.002)

    async def step(self, *, lease: float = 30, end: str | None = None) -> int:
        """Claim, project, end the claim. Returns how many events were claimed."""
        events = await claim(
            self.database, self.target, worker="storm", limit=self.random.choice([1, 20, 60]), lease_seconds=lease
        )
        if not events:
            return 0
        self.claimed += len(events)
        assert len({event.memory_id for event in events}) == len(events), "a pair twice in one batch"
        if lease > 1:
            for event in events:
                assert event.memory_id not in self.in_flight, "a pair twice in flight"
                self.in_flight[event.memory_id] = event.id
        truths = await read_truths(self.database, events, Needs(fields=False))
        end = end or self.random.choices(["complete", "renew", "give_back", "fail", "forget"], [70, 10, 8, 8, 4])[0]
        self.ends[end] += 1
        if end == "renew":
            ours = await renew(self.database, events, lease_seconds=30)
            assert lease < 1 or ours == {event.id for event in events}
            end = "complete"
        for event in events:
            if self.in_flight.get(event.memory_id) == event.id:
                del self.in_flight[event.memory_id]
        await self._end(end, events, {event.id: truths[event.id].version for event in events}, lease)
        return len(events)

    async def _end(self, end: str, events: list[Event], versions: dict[int, int], lease: float) -> None:
        match end:
            case "complete":
                done = await complete(self.database, events)
                assert lease < 1 or done.ids == {event.id for event in events}, "a claim within its lease was lost"
                for event in events:
                    if event.id in done.ids:
                        key = (event.memory_id, event.family)
                        assert versions[event.id] >= self.projected[key] or lease < 1, "the projection went back"
                        self.projected[key] = max(versions[event.id], self.projected[key])
            case "give_back":
                await give_back(self.database, events)
            case "fail":
                await fail(self.database, [Failure(event, "storm") for event in events], POLICY)
            case _:
                # Killed: the lease ends early instead of in half a minute.
                await execute(
                    self.database,
                    "UPDATE {schema}.memory_outbox SET locked_until = now() WHERE ctid = ANY (ARRAY (SELECT ctid "
                    "FROM {schema}.memory_outbox WHERE claim_token = $1 FOR UPDATE SKIP LOCKED))",
                    events[0].claim_token,
                )

    async def keeper(self) -> None:
        """Reclaims, replays and prunes beside them."""
        while not self.enough:
            await reclaim_expired(self.database, self.target, POLICY)
            dead = await rows(self.database, "status = 'dead'")
            await replay(self.database, [row["id"] for row in dead])
            await prune_processed(self.database, retention_seconds=0.5, batch=200, max_batches=5)
            await asyncio.sleep(0.02)

    async def run(self) -> None:
        self.memories = await create(
            self.database, MEMORIES, targets=frozenset({self.target}), edges=self.target is Target.NEO4J
        )
        async with asyncio.TaskGroup() as group:
            for _ in range(CLAIMERS):
                group.create_task(self.claimer())
            for _ in range(WRITERS):
                group.create_task(self.writer())
            group.create_task(self.keeper())

    async def finish(self) -> None:
        """Calm: what is left is reclaimed, replayed and completed."""
        await execute(self.database, "UPDATE {schema}.memory_outbox SET locked_until = now() - interval '1 s' "
                                     "WHERE status = 'processing'")  # fmt: skip
        await reclaim_expired(self.database, self.target, POLICY)
        await replay(self.database, [row["id"] for row in await rows(self.database, "status = 'dead'")])
        await make_due(self.database)
        while await self.step(end="complete"):
            pass


@pytest.mark.slow
@pytest.mark.parametrize("target", [Target.MILVUS, Target.NEO4J])
async def test_no_pair_twice_in_flight_and_no_event_lost(wide: Database, target: Target) -> None:
    storm = Storm(wide, target, seed=len(target))
    await storm.run()
    assert storm.claimed >= CLAIMS
    assert set(storm.ends) == {"complete", "renew", "give_back", "fail", "forget"}
    await storm.finish()
    assert {row["status"] for row in await rows(wide)} <= {"processed"}
    behind = {key: version for key, version in storm.written.items() if storm.projected[key] < version}
    assert behind == {}, "an event was lost"


async def test_a_stolen_lease_is_completed_once(database: Database) -> None:
    """Two workers end the same event at the same moment, many times: exactly one of them succeeds."""
    for _ in range(60):
        await create(database)
        [stale] = await claim(database, Target.MILVUS, worker="a", limit=1, lease_seconds=0.001)
        await asyncio.sleep(0.002)

        async def steal() -> int:
            await reclaim_expired(database, Target.MILVUS, POLICY)
            return len(await claim(database, Target.MILVUS, worker="b", limit=1, lease_seconds=30))

        done, stolen = await asyncio.gather(complete(database, [stale]), steal())
        # The loser of the race holds the row's lock for a moment, so that the thief may have passed it by.
        later = len(await claim(database, Target.MILVUS, worker="c", limit=1, lease_seconds=30))
        assert len(done.ids) + stolen + later == 1
        await execute(database, "DELETE FROM {schema}.memory_outbox")


async def test_concurrent_writers_of_one_memory_leave_one_pending_event(database: Database) -> None:
    [memory] = await create(database)
    for _ in range(5):
        await asyncio.gather(*(change(database, [memory]) for _ in range(8)))
        pending = await rows(database, "status = 'pending'")
        assert len(pending) == 1
        newest = max(row["aggregate_version"] for row in await rows(database))
        assert pending[0]["aggregate_version"] == newest
