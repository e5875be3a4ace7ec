"""The Neo4j target: what an outbox worker does to keep the graph equal to the truth.

The graph is a function of the truth, whatever the order of events: a live memory has its node, a source has exactly
its live edges, and the end of an edge without a node of its own is a bare node. A node event touches the node's
properties alone, an edges event the source's outgoing edges alone; both remove a bare node that has no edge left. So
deleting a memory and the events of the sources that pointed to it may come in any order.

Source: seed `002` sections 6, 9; design sections 5 and 6.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from memplane.errors import IdentityError
from memplane.outbox.events import Family, Needs, Outcome, Target, Task
from memplane.projections import neo4j_queries as cypher
from memplane.projections.decide import Decision, Held
from memplane.projections.errors import ProjectionRefused, TargetTimeout
from memplane.projections.generation import Generation, ensure_generation
from memplane.projections.neo4j_client import GraphTransaction, Neo4jConnection
from memplane.projections.neo4j_edge_writes import edges_settled, set_edges
from memplane.projections.neo4j_edges import EdgePlan
from memplane.projections.neo4j_node import HASH, node_of
from memplane.projections.neo4j_node_writes import Raced, delete_nodes, held_node, upsert_nodes
from memplane.schema.database import Database

T = TypeVar("T")

RACES = frozenset(
    {
        "Neo.ClientError.Schema.ConstraintValidationFailed",
        "Neo.ClientError.Statement.EntityNotFound",
        "Neo.ClientError.Statement.ConstraintVerificationFailed",
    }
)
"""What a transaction answers when another one added an edge to a bare node, or removed the node, at the same time."""

RACE_ROUNDS = 5


class Neo4jProjection:
    """A `ProjectionTarget` over the nodes and edges that carry this backend's id."""

    def __init__(self, database: Database, neo4j: Neo4jConnection) -> None:
        self.database = database
        self.neo4j = neo4j
        self._generation: Generation | None = None
        self._starting = asyncio.Lock()

    @property
    def name(self) -> Target:
        return Target.NEO4J

    @property
    def needs(self) -> Needs:
        return Needs(fields=True)

    async def start(self) -> None:
        """Make the unique constraint and the generation. Idempotent. Raises `IdentityError`, `TargetUnavailable`."""
        await self.generation()

    async def generation(self) -> Generation:
        """The generation that is written."""
        async with self._starting:
            if self._generation is None:
                generation = await ensure_generation(self.database, Target.NEO4J)
                await ensure_schema(self.neo4j)
                self._generation = generation
            return self._generation

    async def close(self) -> None:
        """Close the driver. Idempotent."""
        await self.neo4j.close()

    async def healthy(self) -> bool:
        """Whether Neo4j answers within two seconds."""
        return await self.neo4j.healthy()

    async def project(self, tasks: Sequence[Task], *, timeout: float) -> Sequence[Outcome]:
        """See `ProjectionTarget.project`. One transaction per kind: nodes, deleted nodes, edges.

        Raises `TimeoutError` when `timeout` is over: what the call did is unknown then.
        """
        try:
            async with asyncio.timeout(timeout):
                return await self._project(await self.generation(), tasks, timeout)
        except TargetTimeout:
            raise TimeoutError from None

    async def _project(self, generation: Generation, tasks: Sequence[Task], timeout: float) -> Sequence[Outcome]:
        ordered = sorted(tasks, key=lambda task: task.truth.memory_id)
        nodes = [task for task in ordered if task.event.family is Family.NODE]
        edges = [task for task in ordered if task.event.family is Family.EDGES]
        outcomes: dict[int, Outcome] = {}
        if live := [task for task in nodes if task.truth.live]:
            outcomes.update(await self._upsert_nodes(generation, live, timeout))
        if dead := [task for task in nodes if not task.truth.live]:
            outcomes.update(await self._delete_nodes(generation, dead, timeout))
        if edges:
            outcomes.update(await self._set_edges(generation, edges, timeout))
        return [outcomes[task.event.id] for task in tasks]

    async def _upsert_nodes(self, generation: Generation, tasks: Sequence[Task], timeout: float) -> dict[int, Outcome]:
        nodes = {task.truth.memory_id: node_of(task.truth, generation) for task in tasks}

        async def work(lost: int, transaction: GraphTransaction) -> list[Decision]:
            return await upsert_nodes(transaction, generation.backend, tasks, nodes, expect_new=lost == 0)

        return _outcomes(tasks, await self._transact(work, timeout))

    async def _delete_nodes(self, generation: Generation, tasks: Sequence[Task], timeout: float) -> dict[int, Outcome]:
        async def work(lost: int, transaction: GraphTransaction) -> list[Decision]:
            return await delete_nodes(transaction, generation.backend, tasks)

        return _outcomes(tasks, await self._transact(work, timeout))

    async def _set_edges(self, generation: Generation, tasks: Sequence[Task], timeout: float) -> dict[int, Outcome]:
        backend = generation.backend

        async def work(lost: int, transaction: GraphTransaction) -> list[EdgePlan]:
            return await set_edges(transaction, backend, tasks)

        plans = await self._transact(work, timeout)
        return {task.event.id: Outcome(plan.verdict) for task, plan in zip(tasks, plans, strict=True)}

    async def _transact(self, work: Callable[[int, GraphTransaction], Awaitable[T]], timeout: float) -> T:
        """`work` in a transaction, again after a race over a node, whose loser has changed nothing.

        `work` is told how many races it has lost before.
        """
        for lost in range(RACE_ROUNDS):
            try:
                return await self.neo4j.transact(partial(work, lost), timeout=timeout)
            except Raced:
                continue
            except ProjectionRefused as refused:
                if refused.code not in RACES:
                    raise
        raise ProjectionRefused("neo4j", "other transactions keep changing the same nodes")

    async def settled(self, tasks: Sequence[Task], *, timeout: float) -> Sequence[bool]:
        """See `ProjectionTarget.settled`."""
        generation = await self.generation()
        backend = generation.backend
        nodes = sorted({task.truth.memory_id for task in tasks if task.event.family is Family.NODE})
        sources = sorted({task.truth.memory_id for task in tasks if task.event.family is Family.EDGES})
        rows = await self.neo4j.run(cypher.READ_NODES, {"backend": backend, "ids": nodes}, timeout=timeout)
        held = {row["memory_id"]: row for row in rows}
        rows = await self.neo4j.run(cypher.READ_EDGES, {"backend": backend, "ids": sources}, timeout=timeout)
        edges = {row["memory_id"]: row for row in rows}
        return [
            _node_settled(task, held_node(held.get(task.truth.memory_id)), generation)
            if task.event.family is Family.NODE
            else edges_settled(task, edges.get(task.truth.memory_id), backend)
            for task in tasks
        ]


async def ensure_schema(neo4j: Neo4jConnection) -> None:
    """Make the unique constraint of (backend, memory_id). Idempotent, also between processes."""
    try:
        await neo4j.run(cypher.CONSTRAINT)
        await neo4j.run(cypher.LOCK_NAME)
    except ProjectionRefused as refused:
        if refused.code not in _SCHEMA_EXISTS:
            raise IdentityError(
                "Neo4j refuses the unique constraint of (:Memory {backend, memory_id}): other data stands in its way, "
                "or the user may not create constraints"
            ) from None


_SCHEMA_EXISTS = frozenset(
    {
        "Neo.ClientError.Schema.EquivalentSchemaRuleAlreadyExists",
        "Neo.ClientError.Schema.ConstraintAlreadyExists",
    }
)


def _outcomes(tasks: Sequence[Task], decisions: Sequence[Decision]) -> dict[int, Outcome]:
    return {task.event.id: Outcome(decision.verdict) for task, decision in zip(tasks, decisions, strict=True)}


def _node_settled(task: Task, held: Held | None, generation: Generation) -> bool:
    if not task.truth.live:
        return held is None
    return held == Held(task.truth.version, str(node_of(task.truth, generation)[HASH]))
