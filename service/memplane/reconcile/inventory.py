"""What a reconciler asks of a target: its objects by id range, and single ones with a strong read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from memplane.outbox.events import Needs, ProjectionTarget, Target, Truth
from memplane.projections.milvus import MilvusProjection
from memplane.projections.neo4j import Neo4jProjection
from memplane.projections.neo4j_edges import HeldEdge
from memplane.reconcile.diff import Expected, HeldObject


@dataclass(slots=True)
class HeldEdges:
    """Outgoing edges by source, and which of their ends have no projected node."""

    by_source: Mapping[int, Sequence[HeldEdge]] = field(default_factory=dict)
    bare: frozenset[int] = frozenset()


class Inventory(Protocol):
    """A target's objects of this backend; those of others are never read. Raises `TargetUnavailable`."""

    @property
    def target(self) -> Target: ...
    @property
    def needs(self) -> Needs: ...
    @property
    def backend(self) -> str: ...
    @property
    def holds_edges(self) -> bool: ...
    def expected(self, truth: Truth) -> Expected:
        """What the target should hold of a live memory."""
        ...

    async def count(self) -> int:
        """About how many objects the target holds."""
        ...

    async def objects_between(self, low: int, high: int) -> list[HeldObject]:
        """Objects with low < id <= high, in id order. May lag a little behind the target."""
        ...

    async def objects_of(self, memory_ids: Sequence[int]) -> list[HeldObject]:
        """These objects, as a strong read shows them, in id order."""
        ...

    async def edges_between(self, low: int, high: int) -> HeldEdges: ...
    async def edges_of(self, sources: Sequence[int]) -> HeldEdges: ...


async def inventory_of(target: ProjectionTarget) -> Inventory:
    """The inventory of a target; its generation is made if this is the first start. Raises like `target.start()`."""
    from memplane.reconcile.milvus import MilvusInventory
    from memplane.reconcile.neo4j import Neo4jInventory

    if isinstance(target, MilvusProjection):
        return MilvusInventory(target.milvus, await target.generation())
    if isinstance(target, Neo4jProjection):
        return Neo4jInventory(target.neo4j, await target.generation())
    raise TypeError(f"{target.name} cannot be reconciled")
