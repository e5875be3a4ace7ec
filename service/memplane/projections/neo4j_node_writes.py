"""Carrying out what `decide` says about nodes, for a batch of tasks in one transaction (decision 0023).

Most events are about memories that the graph does not hold yet. So those of a first version are merged at once: one
statement creates what is missing, locks what is there, and returns only what is there and differs. The others are
locked and read first. Either way versions are compared under the nodes' locks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from memplane.outbox.events import Task, Verdict
from memplane.projections import neo4j_queries as cypher
from memplane.projections.decide import Decision, Held, decide_delete, decide_upsert, delete_version
from memplane.projections.neo4j_client import GraphTransaction
from memplane.projections.neo4j_edges import whole
from memplane.projections.neo4j_node import HASH, Node, bare_node, columns

HeldRow: TypeAlias = Mapping[str, Any]
"""`memory_id, version, hash, edges_version` of a node that exists."""


class Raced(Exception):  # noqa: N818 - reads as what happened; never leaves the target
    """Nodes were there that this transaction expected to make. It has to be rolled back, and to expect none."""


async def upsert_nodes(
    transaction: GraphTransaction,
    backend: str,
    tasks: Sequence[Task],
    nodes: Mapping[int, Node],
    *,
    expect_new: bool,
) -> list[Decision]:
    """Make the nodes of live memories what `nodes` says, unless the graph is ahead. Decisions in the tasks' order.

    Raises `Raced`.
    """
    new = [task.truth.memory_id for task in tasks if expect_new and _is_first(task)]
    held, created = await _merge(transaction, backend, [nodes[memory_id] for memory_id in new])
    merged = set(new).difference(held)
    # Each was made just now, or each was there with exactly this content.
    done = Decision(False, Verdict.APPLIED if created else Verdict.UNCHANGED)
    others = [task.truth.memory_id for task in tasks if not (expect_new and _is_first(task))]
    held.update(await _lock(transaction, backend, others))
    decisions = [done if task.truth.memory_id in merged else _upsert(task, nodes, held) for task in tasks]
    writes = _writes(tasks, decisions)
    absent = [nodes[memory_id] for memory_id in writes if memory_id not in held]
    found, created = await _merge(transaction, backend, absent)
    if found or not created:
        raise Raced
    await _overwrite(transaction, backend, [nodes[memory_id] for memory_id in writes if memory_id in held], held)
    return decisions


async def delete_nodes(transaction: GraphTransaction, backend: str, tasks: Sequence[Task]) -> list[Decision]:
    """Remove the nodes of dead memories; what another source's edge still needs stays as a bare node."""
    held = await _lock(transaction, backend, [task.truth.memory_id for task in tasks])
    decisions = [
        decide_delete(held_node(held.get(task.truth.memory_id)), version=delete_version(task), repair=task.event.repair)
        for task in tasks
    ]
    bare = [memory_id for memory_id in _writes(tasks, decisions) if memory_id in held]
    if bare:
        await _overwrite(transaction, backend, [bare_node(backend, memory_id) for memory_id in bare], held)
        # That source's event removes the edge, and the node with its last one.
        await transaction.rows(cypher.SWEEP_BARE, {"backend": backend, "ids": bare})
    return decisions


def held_node(row: HeldRow | None) -> Held | None:
    """What the graph holds of a memory, from a row with `version, hash`; a bare node holds nothing."""
    return None if row is None or row["version"] is None else Held(whole(row["version"]), row["hash"] or "")


def _is_first(task: Task) -> bool:
    # A repair writes whatever is there, so it has to know what there is.
    return task.truth.version == 1 and not task.event.repair


async def _merge(transaction: GraphTransaction, backend: str, nodes: Sequence[Node]) -> tuple[dict[int, HeldRow], bool]:
    """Create the nodes that are missing. Returns those that were there and differ, and whether the rest is new.

    Raises `Raced` when some of the rest is new and some was there as it should be: nobody could tell which.
    """
    if not nodes:
        return {}, True
    rows, created = await transaction.merged(cypher.MERGE_NODES, {"backend": backend, **columns(nodes)})
    if 0 < created < len(nodes) - len(rows):
        raise Raced
    return {row["memory_id"]: row for row in rows}, created == len(nodes) - len(rows)


async def _lock(transaction: GraphTransaction, backend: str, memory_ids: Sequence[int]) -> dict[int, HeldRow]:
    """Lock the nodes that exist, in order, and return what they hold by memory id."""
    if not memory_ids:
        return {}
    rows = await transaction.rows(cypher.LOCK_NODES, {"backend": backend, "ids": sorted(memory_ids)})
    return {row["memory_id"]: row for row in rows}


async def _overwrite(
    transaction: GraphTransaction, backend: str, nodes: Sequence[Node], held: Mapping[int, HeldRow]
) -> None:
    """Give locked nodes these properties and no others, but for the version of their edges, which stays."""
    if nodes:
        versions = [held[memory_id]["edges_version"] for memory_id, *_ in nodes]
        await transaction.rows(
            cypher.OVERWRITE_NODES, {"backend": backend, "edges_version": versions, **columns(nodes)}
        )


def _upsert(task: Task, nodes: Mapping[int, Node], held: Mapping[int, HeldRow]) -> Decision:
    memory_id = task.truth.memory_id
    return decide_upsert(
        held_node(held.get(memory_id)),
        version=task.truth.version,
        projection_hash=str(nodes[memory_id][HASH]),
        repair=task.event.repair,
    )


def _writes(tasks: Sequence[Task], decisions: Sequence[Decision]) -> list[int]:
    return [task.truth.memory_id for task, decision in zip(tasks, decisions, strict=True) if decision.write]
