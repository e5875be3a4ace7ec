"""Any sequence of outbox operations keeps the invariants and loses no change: a model against the database.

The model knows, per memory, the version of the truth and the version that was last projected; and per claim, what its
worker has read. Whatever happened, a memory whose projection is behind has an event that will bring it up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from memplane.outbox.admin import replay
from memplane.outbox.claim import claim, complete
from memplane.outbox.enqueue import Repair, enqueue_repairs
from memplane.outbox.events import Event, Family, Needs, Target
from memplane.outbox.prune import prune_processed
from memplane.outbox.putback import Failure, fail, give_back, reclaim_expired
from memplane.outbox.retry import RetryPolicy
from memplane.outbox.truth import read_truths
from memplane.schema.database import Database
from memplane.settings import PostgresSettings
from tests.outbox.world import change, create, execute, make_due, rows

T = TypeVar("T")
POLICY = RetryPolicy(base_seconds=30, max_attempts=2)
MEMORIES = 3
NODE_AND_EDGES = (Family.NODE, Family.EDGES)


class OutboxMachine(RuleBasedStateMachine):
    """Neo4j, because it has both families."""

    settings_of_database: PostgresSettings

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.database = Database(self.settings_of_database)
        self.memories: list[int] = []
        self.truth: dict[tuple[int, Family], int] = {}
        self.projected: dict[tuple[int, Family], int] = {}
        self.claims: list[tuple[list[Event], dict[int, int]]] = []

    def run(self, work: Coroutine[object, object, T]) -> T:
        return self.runner.run(work)

    def teardown(self) -> None:
        self.run(self.database.close())
        self.runner.close()

    @initialize()
    def begin(self) -> None:
        self.run(execute(self.database, "TRUNCATE {schema}.memory_outbox, {schema}.long_term_memory"))
        self.memories = self.run(create(self.database, MEMORIES, targets={Target.NEO4J}, edges=True))
        self.truth = {(id_, family): 1 for id_ in self.memories for family in NODE_AND_EDGES}
        self.projected = dict.fromkeys(self.truth, 0)

    @rule(index=st.integers(0, MEMORIES - 1), families=st.sampled_from([(True, False), (False, True), (True, True)]))
    def write(self, index: int, families: tuple[bool, bool]) -> None:
        memory, (node, edges) = self.memories[index], families
        versions = self.run(change(self.database, [memory], targets={Target.NEO4J}, node=node, edges=edges))
        for family, touched in zip(NODE_AND_EDGES, families, strict=True):
            if touched:
                self.truth[memory, family] = versions[memory]

    @rule(limit=st.integers(1, 4))
    def take(self, limit: int) -> None:
        events = self.run(claim(self.database, Target.NEO4J, worker="m", limit=limit, lease_seconds=60))
        assert len({event.memory_id for event in events}) == len(events)
        assert len(events) == 1 or not any(event.suspect for event in events)
        if events:
            truths = self.run(read_truths(self.database, events, Needs(fields=False)))
            self.claims.append((events, {event.id: truths[event.id].version for event in events}))

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), stale=st.booleans())
    def acknowledge(self, data: st.DataObject, stale: bool) -> None:
        events, versions = self._pick(data, keep=stale)
        done = self.run(complete(self.database, events))
        for event in events:
            if event.id in done.ids:
                key = (event.memory_id, event.family)
                assert versions[event.id] >= self.projected[key], "the projection went back"
                self.projected[key] = versions[event.id]

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), charged=st.booleans())
    def put_back(self, data: st.DataObject, charged: bool) -> None:
        events, _ = self._pick(data, keep=False)
        if charged:
            self.run(fail(self.database, [Failure(event, "no") for event in events], POLICY))
        else:
            self.run(give_back(self.database, events))

    def _pick(self, data: st.DataObject, *, keep: bool) -> tuple[list[Event], dict[int, int]]:
        index = data.draw(st.integers(0, len(self.claims) - 1))
        return self.claims[index] if keep else self.claims.pop(index)

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def lease_ends(self, data: st.DataObject) -> None:
        events, _ = self._pick(data, keep=True)
        statement = "UPDATE {schema}.memory_outbox SET locked_until = now() - interval '1 s' WHERE claim_token = $1"
        self.run(execute(self.database, statement, events[0].claim_token))
        self.run(reclaim_expired(self.database, Target.NEO4J, POLICY))

    @rule()
    def time_passes(self) -> None:
        self.run(make_due(self.database))

    @rule(data=st.data())
    def replay_a_dead_one(self, data: st.DataObject) -> None:
        dead = self.run(rows(self.database, "status = 'dead'"))
        if dead:
            chosen = data.draw(st.sets(st.sampled_from([row["id"] for row in dead]), min_size=1))
            self.run(replay(self.database, sorted(chosen)))

    @rule(index=st.integers(0, MEMORIES - 1), family=st.sampled_from(NODE_AND_EDGES))
    def repair(self, index: int, family: Family) -> None:
        memory = self.memories[index]
        wanted = Repair(Target.NEO4J, memory, "t", "u", self.truth[memory, family], "upsert", family)

        async def insert() -> int:
            async with self.database.transaction() as connection:
                return await enqueue_repairs(connection, self.database, [wanted])

        assert self.run(insert()) in {0, 1}

    @rule()
    def prune(self) -> None:
        self.run(prune_processed(self.database, retention_seconds=0))

    @invariant()
    def one_in_flight_one_waiting(self) -> None:
        unfinished = self.run(rows(self.database, "status IN ('pending', 'processing')"))
        flying = [row["aggregate_id"] for row in unfinished if row["status"] == "processing"]
        waiting = [(row["aggregate_id"], row["family"]) for row in unfinished if row["status"] == "pending"]
        assert len(set(flying)) == len(flying)
        assert len(set(waiting)) == len(waiting)
        for row in unfinished:
            held = row["status"] == "processing"
            assert (row["claim_token"] is not None) == (row["locked_until"] is not None) == held

    @invariant()
    def no_change_is_lost(self) -> None:
        alive = self.run(rows(self.database, "status IN ('pending', 'processing', 'dead')"))
        owed = {(row["aggregate_id"], Family(row["family"])) for row in alive}
        for key, version in self.truth.items():
            assert self.projected[key] >= version or key in owed, f"nothing will project {key}"


@pytest.fixture
def machine(postgres_settings: PostgresSettings) -> type[OutboxMachine]:
    OutboxMachine.settings_of_database = postgres_settings
    return OutboxMachine


@pytest.mark.slow
def test_any_sequence_of_operations_keeps_the_invariants(machine: type[OutboxMachine]) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine,
        settings=settings(
            max_examples=25,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )
