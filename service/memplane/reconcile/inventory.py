"""What a reconciler asks of a target: its objects by id range, and single ones with a strong read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from memplane.outbox.events import Needs, ProjectionTarget, Target, Truth
from memplane.projections.generation import read_generation
from memplane.projections.milvus import MilvusProjection
from memplane.projections.neo4j import Neo4jProjection
from memplane.projections.neo4j_edges import HeldEdge
from memplane.reconcile.diff import Difference, Expected, HeldObject
from memplane.reconcile.truth import Row, Vectors


@dataclass(slots=True)
class HeldEdges:
    """Outgoing edges by source, and which of their ends have no projected node."""

    by_source: Mapping[int, Sequence[HeldEdge]] = field(default_factory=dict)
    bare: frozenset[int] = frozenset()


class Side(Protocol):
    """A target's objects of one id range or one set of ids, in whatever form compares fastest."""

    def differences(self, rows: Sequence[Row]) -> Sequence[Difference]:
        """What differs between them and the live memories of the same range or set, which come in id order."""
        ...


class Inventory(Protocol):
    """A target's objects of this backend. Objects of others are told apart, never touched. Raises `TargetUnavailable`.

    Scans may lag a little behind the target; whatever they find is looked at again with a strong read.
    """

    @property
    def target(self) -> Target: ...
    @property
    def generation_id(self) -> int: ...
    @property
    def needs(self) -> Needs: ...
    @property
    def vectors(self) -> Vectors | None:
        """Whose stored embeddings the target should hold; None: it holds no vectors, or they are not compared."""
        ...

    @property
    def page(self) -> int:
        """Memories of one comparison: enough to be worth a call, few enough to be held in memory."""
        ...

    @property
    def backend(self) -> str: ...
    @property
    def holds_edges(self) -> bool: ...
    def expected(self, truth: Truth, vector: bytes | None) -> Expected:
        """What the target should hold of a live memory."""
        ...

    async def open(self) -> None:
        """Contact the target and make sure of its owner. Raises `TargetUnavailable`, `IdentityError`."""
        ...

    async def count(self) -> int:
        """About how many objects the target holds."""
        ...

    async def between(self, low: int, high: int) -> Side:
        """Objects with low < id <= high."""
        ...

    async def among(self, memory_ids: Sequence[int]) -> Side:
        """These objects."""
        ...

    async def objects_of(self, memory_ids: Sequence[int]) -> list[HeldObject]:
        """These objects, as a strong read shows them, in id order, vectors included."""
        ...

    async def edges_between(self, low: int, high: int) -> HeldEdges: ...
    async def edges_of(self, sources: Sequence[int]) -> HeldEdges: ...


async def inventory_of(target: ProjectionTarget, *, vectors: bool = True) -> Inventory:
    """The inventory of a target's active generation, which is made if this is the first start.

    `vectors`: compare those of Milvus, too. The target itself is contacted by `open`, so that a target that is away
    can be recorded as a failed run.
    """
    from memplane.reconcile.milvus import MilvusInventory
    from memplane.reconcile.neo4j import Neo4jInventory

    if isinstance(target, MilvusProjection):
        generation = await read_generation(target.database, Target.MILVUS) or await target.generation()
        return MilvusInventory(target.milvus, generation, vectors=vectors)
    if isinstance(target, Neo4jProjection):
        generation = await read_generation(target.database, Target.NEO4J) or await target.generation()
        return Neo4jInventory(target.neo4j, generation)
    raise TypeError(f"{target.name} cannot be reconciled")
