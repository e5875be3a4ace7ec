"""Carrying out what `plan_edges` says, for a batch of sources in one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from memplane.outbox.events import Task, Verdict
from memplane.projections import neo4j_queries as cypher
from memplane.projections.neo4j_client import GraphTransaction
from memplane.projections.neo4j_edges import EdgePlan, held_edge, plan_edges, whole


async def set_edges(transaction: GraphTransaction, backend: str, tasks: Sequence[Task]) -> list[EdgePlan]:
    """Make the outgoing edges of each task's source exactly its live set; the sources are locked first."""
    ids = [task.truth.memory_id for task in tasks]
    await transaction.rows(cypher.LOCK_SOURCES, {"backend": backend, "ids": ids})
    rows = await transaction.rows(cypher.READ_EDGES, {"backend": backend, "ids": ids})
    held = {row["memory_id"]: row for row in rows}
    plans = [_plan(task, held[task.truth.memory_id], backend) for task in tasks]
    await _apply(transaction, backend, tasks, plans, held)
    return plans


def edges_settled(task: Task, row: Mapping[str, Any] | None, backend: str) -> bool:
    """Whether the graph holds exactly the task's edges; `row` is what `READ_EDGES` says of its source, if anything."""
    if row is None:
        return not task.truth.edges
    return _plan(task, row, backend).verdict is Verdict.UNCHANGED


async def _apply(
    transaction: GraphTransaction,
    backend: str,
    tasks: Sequence[Task],
    plans: Sequence[EdgePlan],
    held: Mapping[int, Mapping[str, Any]],
) -> None:
    """Carry out the plans of one batch of sources, and remove the bare nodes that lost their last edge."""
    put = [
        {
            "source_id": edge.source_id,
            "target_id": edge.target_id,
            "type": edge.type,
            "version": edge.version,
            "relation_hash": edge.relation_hash,
        }
        for plan in plans
        for edge in sorted(plan.put, key=lambda edge: edge.target_id)
    ]
    delete = [reference for plan in plans for reference in plan.delete]
    done = [
        {"memory_id": task.truth.memory_id, "version": task.truth.edges_version}
        for task, plan in zip(tasks, plans, strict=True)
        if plan.verdict is not Verdict.AHEAD or task.event.repair
    ]
    gone = set(delete)
    loose = {
        edge["target_id"]
        for row in held.values()
        for edge in row["edges"]
        if edge["reference"] in gone and edge["target_id"] is not None
    }
    if delete:
        await transaction.rows(cypher.DELETE_EDGES, {"references": delete})
    if put:
        await transaction.rows(cypher.PUT_EDGES, {"backend": backend, "rows": put})
    await transaction.rows(cypher.SET_EDGES_VERSION, {"backend": backend, "rows": done})
    # A source that has no edge may have been made bare by the lock alone.
    await transaction.rows(cypher.SWEEP_BARE, {"backend": backend, "ids": sorted(loose.union(held))})


def _plan(task: Task, row: Mapping[str, Any], backend: str) -> EdgePlan:
    announced = task.event.payload.get("edges_version") or 0
    return plan_edges(
        [held_edge(edge) for edge in row["edges"]],
        task.truth.edges or (),
        backend=backend,
        # A purged source has no version of its own left, so the event's stands in.
        version=max(task.truth.edges_version, announced),
        held_version=whole(row["edges_version"]),
        repair=task.event.repair,
    )
