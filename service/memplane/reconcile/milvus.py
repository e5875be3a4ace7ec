"""Milvus' side of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from memplane.outbox.events import Needs, Target, TaskFailed, Truth
from memplane.projections.generation import Generation
from memplane.projections.milvus_client import MilvusConnection
from memplane.projections.milvus_row import SCALARS, digest, expected
from memplane.reconcile.diff import Expected, HeldObject
from memplane.reconcile.inventory import HeldEdges

LIMIT = 8192
"""Rows of one read; Milvus returns at most 16,384."""

READ_SECONDS = 60.0
"""Deadline of one read of a range."""


class MilvusInventory:
    """An `Inventory` over the collection of a generation."""

    def __init__(self, milvus: MilvusConnection, generation: Generation) -> None:
        self._milvus = milvus
        self._generation = generation

    @property
    def target(self) -> Target:
        return Target.MILVUS

    @property
    def needs(self) -> Needs:
        return Needs(fields=True, metadata=True)

    @property
    def backend(self) -> str:
        return self._generation.backend

    @property
    def holds_edges(self) -> bool:
        return False

    def expected(self, truth: Truth) -> Expected:
        try:
            row, _ = expected(truth, self._generation)
        except TaskFailed:
            # Milvus cannot hold it, so it is missing there; its event is dead and says why.
            return Expected(truth.memory_id, truth.version, "")
        return Expected(truth.memory_id, truth.version, row["projection_hash"])

    async def count(self) -> int:
        """Strong, so that the Bounded reads of the ranges, which come after it, show at least what it has counted."""
        rows = await self._milvus.call(
            "query",
            self._generation.collection,
            filter="",
            output_fields=["count(*)"],
            consistency_level="Strong",
            timeout=READ_SECONDS,
        )
        return int(rows[0]["count(*)"])

    async def objects_between(self, low: int, high: int) -> list[HeldObject]:
        """Ranges that hold more than one answer may carry are halved, so no order of answers is relied upon."""
        rows: list[Mapping[str, Any]] = []
        ranges = [(low, high)]
        while ranges:
            start, end = ranges.pop()
            found = await self._query(f"memory_id > {start} and memory_id <= {end}", "Bounded", limit=LIMIT)
            if len(found) < LIMIT:
                rows += found
            else:
                middle = (start + end) // 2
                ranges += [(start, middle), (middle, end)]
        return self._objects(rows)

    async def objects_of(self, memory_ids: Sequence[int]) -> list[HeldObject]:
        return self._objects(await self._query(f"memory_id in {list(memory_ids)}", "Strong"))

    async def edges_between(self, low: int, high: int) -> HeldEdges:
        return HeldEdges()

    async def edges_of(self, sources: Sequence[int]) -> HeldEdges:
        return HeldEdges()

    async def _query(self, condition: str, consistency: str, **options: int) -> list[Mapping[str, Any]]:
        rows: list[Mapping[str, Any]] = await self._milvus.call(
            "query",
            self._generation.collection,
            filter=condition,
            output_fields=[*SCALARS, "projection_hash"],
            consistency_level=consistency,
            timeout=READ_SECONDS,
            **options,
        )
        return rows

    def _objects(self, rows: Sequence[Mapping[str, Any]]) -> list[HeldObject]:
        space = self._generation.space
        return sorted(
            (
                HeldObject(
                    row["memory_id"],
                    row["version"],
                    row["projection_hash"],
                    digest(row, space),
                    row["tenant"],
                    row["user_id"],
                )
                for row in rows
            ),
            key=lambda held: held.memory_id,
        )
