"""Milvus' side of a comparison."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from memplane.outbox.events import Needs, Target, TaskFailed, Truth
from memplane.projections.generation import Generation
from memplane.projections.milvus_client import MilvusConnection
from memplane.projections.milvus_collection import ensure_collection
from memplane.projections.milvus_row import SCALARS, digest, expected
from memplane.reconcile.diff import Difference, Expected, HeldObject, diff_objects
from memplane.reconcile.inventory import HeldEdges, Side
from memplane.reconcile.milvus_columns import FIELDS, expected_tuples, held_tuples
from memplane.reconcile.truth import Row, Vectors, truth_of

LIMIT = 16384
"""Rows of one read: the most that Milvus returns."""

PAGE = 4000
"""Memories of one comparison, if their vectors are not too large. Larger ones are not faster, and take more memory."""

PAGE_BYTES = 8 * 2**20
"""What the vectors and other fields of one page may take, about."""

ROW_BYTES = 1024
"""What the fields of a row but its vector take, about."""

READ_SECONDS = 60.0
"""Deadline of one read of a range."""

NEEDS = Needs(fields=True, metadata=True)


class MilvusInventory:
    """An `Inventory` over the collection of a generation."""

    def __init__(self, milvus: MilvusConnection, generation: Generation, *, vectors: bool = True) -> None:
        self._milvus = milvus
        self._generation = generation
        self._vectors = vectors

    @property
    def target(self) -> Target:
        return Target.MILVUS

    @property
    def generation_id(self) -> int:
        return self._generation.id

    @property
    def needs(self) -> Needs:
        return NEEDS

    @property
    def vectors(self) -> Vectors | None:
        generation = self._generation
        return Vectors(generation.model, generation.revision, generation.dimensions) if self._vectors else None

    @property
    def page(self) -> int:
        row = ROW_BYTES + (4 * self._generation.dimensions if self._vectors else 0)
        return max(100, min(PAGE, PAGE_BYTES // row))

    @property
    def backend(self) -> str:
        return self._generation.backend

    @property
    def holds_edges(self) -> bool:
        return False

    def expected(self, truth: Truth, vector: bytes | None) -> Expected:
        return _expected(truth, vector, self._generation)

    async def open(self) -> None:
        """Unlike a worker's start it does not mind rows of another backend: they are what a run has to tell."""
        await ensure_collection(self._milvus, self._generation, check_rows=False)

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

    async def between(self, low: int, high: int) -> Side:
        """Ranges that hold more than one answer may carry are halved, so no order of answers is relied upon."""
        limit = min(LIMIT, 2 * self.page)
        rows: list[tuple[Any, ...]] = []
        ranges = [(low, high)]
        while ranges:
            start, end = ranges.pop()
            found = await self._query(f"memory_id > {start} and memory_id <= {end}", "Bounded", limit=limit)
            if len(found) < limit:
                rows += held_tuples(found, self._dimensions, digests=True)
            else:
                middle = (start + end) // 2
                ranges += [(middle, end), (start, middle)]
        return MilvusSide(rows, self._generation)

    async def among(self, memory_ids: Sequence[int]) -> Side:
        rows = await self._query(f"memory_id in {list(memory_ids)}", "Bounded")
        return MilvusSide(held_tuples(rows, self._dimensions, digests=True), self._generation)

    async def objects_of(self, memory_ids: Sequence[int]) -> list[HeldObject]:
        rows = await self._query(f"memory_id in {list(memory_ids)}", "Strong")
        return [_object(row, self._generation) for row in held_tuples(rows, self._dimensions, digests=False)]

    async def edges_between(self, low: int, high: int) -> HeldEdges:
        return HeldEdges()

    async def edges_of(self, sources: Sequence[int]) -> HeldEdges:
        return HeldEdges()

    @property
    def _dimensions(self) -> int | None:
        return self._generation.dimensions if self._vectors else None

    async def _query(self, condition: str, consistency: str, **options: int) -> list[Mapping[str, Any]]:
        rows: list[Mapping[str, Any]] = await self._milvus.call(
            "query",
            self._generation.collection,
            filter=condition,
            output_fields=[*FIELDS, *(["vector"] if self._vectors else [])],
            consistency_level=consistency,
            timeout=READ_SECONDS,
            **options,
        )
        return rows


class MilvusSide:
    """Rows of the collection as tuples, see `milvus_columns`."""

    def __init__(self, rows: list[tuple[Any, ...]], generation: Generation) -> None:
        self._rows = rows
        self._generation = generation

    def differences(self, rows: Sequence[Row]) -> Sequence[Difference]:
        """Almost always both lists are equal; only of what is not, one row is looked at after another."""
        wanted = expected_tuples(rows, self._generation)
        if wanted == self._rows:
            return ()
        held = {row[0]: row for row in self._rows}
        odd = [(row, want) for row, want in zip(rows, wanted, strict=True) if held.get(want[0]) != want]
        known = {want[0] for want in wanted}
        odd_ids = {want[0] for _, want in odd}
        return list(
            diff_objects(
                [_expected(truth_of(row, NEEDS), want[-1], self._generation) for row, want in odd],
                [_object(row, self._generation) for row in self._rows if row[0] in odd_ids or row[0] not in known],
            )
        )


def _expected(truth: Truth, vector: bytes | None, generation: Generation) -> Expected:
    try:
        row, _ = expected(truth, generation)
    except TaskFailed:
        # Milvus cannot hold it, so it is missing there; its event is dead and says why.
        return Expected(truth.memory_id, truth.version, "")
    return Expected(truth.memory_id, truth.version, row["projection_hash"], vector)


def _object(row: tuple[Any, ...], generation: Generation) -> HeldObject:
    fields = dict(zip(FIELDS, row, strict=False))
    for name in ("tags", "metadata"):
        fields[name] = json.loads(fields[name])
    return HeldObject(
        fields["memory_id"],
        fields["version"],
        fields["projection_hash"],
        digest({name: fields[name] for name in SCALARS}, generation.space),
        fields["tenant"],
        fields["user_id"],
        vector=row[-1],
        foreign=None if fields["backend"] == generation.backend else fields["backend"],
    )
