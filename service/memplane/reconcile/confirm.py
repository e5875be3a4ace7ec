"""Candidates become mismatches only after a second, careful look (design section 7).

The scan reads the truth and the target at different moments, so what it finds may be a change on its way. A candidate
counts when the truth, looked at before and after a strong read of the target, has not moved, no event of it is
unfinished, and the difference is still there.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from memplane.outbox.enqueue import Operation, Repair
from memplane.outbox.events import Family
from memplane.reconcile.diff import Difference, Drift, HeldObject, diff_edges, diff_objects
from memplane.reconcile.history import ineffective_repairs
from memplane.reconcile.inventory import Inventory
from memplane.reconcile.truth import Standing, edges_of, embeddings_of, standings
from memplane.schema.database import Database


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A confirmed difference, and the event that repairs it; None when it is not to be repaired."""

    difference: Difference
    repair: Repair | None
    living: bool
    """Whether the memory lives in the truth."""


@dataclass(slots=True)
class Confirmed:
    """What became of candidates."""

    mismatches: list[Mismatch] = field(default_factory=list)
    unsettled: list[int] = field(default_factory=list)
    """Dead memories that the scan saw in the target, but whose events are on the way."""
    oldest_unsettled_xid: int | None = None
    """The oldest change of a memory that could not be judged: the next incremental run has to look at it."""


async def confirm(database: Database, inventory: Inventory, candidates: Iterable[Difference]) -> Confirmed:
    """Those of the candidates that are drift. They may turn out to be of another kind than the scan said."""
    candidates = list(candidates)
    ids = sorted({candidate.memory_id for candidate in candidates})
    if not ids:
        return Confirmed()
    before = await standings(database, inventory.needs, inventory.target, ids)
    still = [memory_id for memory_id in ids if not (before[memory_id].busy or before[memory_id].expired)]
    held = {one.memory_id: one for one in await inventory.objects_of(still)} if still else {}
    wanted_edges = await edges_of(database, still) if still and inventory.holds_edges else {}
    held_edges = await inventory.edges_of(still)
    vectors = await embeddings_of(database, inventory.vectors, still) if still and inventory.vectors else {}
    after = await standings(database, inventory.needs, inventory.target, still)
    firm = [memory_id for memory_id in still if before[memory_id].same(after[memory_id])]
    expected = [inventory.expected(after[one].truth, vectors.get(one)) for one in firm if after[one].truth.live]
    found = [
        *diff_objects(expected, [_judged(held[one], vectors.get(one)) for one in firm if one in held]),
        *diff_edges(
            {one: wanted_edges[one] for one in firm if one in wanted_edges},
            {one: held_edges.by_source[one] for one in firm if one in held_edges.by_source},
            held_edges.bare,
            inventory.backend,
        ),
    ]
    mismatches = [
        _mismatch(inventory, difference, after[difference.memory_id], held.get(difference.memory_id))
        for difference in found
    ]
    loose = set(ids) - set(firm)
    return Confirmed(
        await _with_history(database, mismatches),
        sorted(
            {one.memory_id for one in candidates if one.memory_id in loose and not before[one.memory_id].truth.live}
        ),
        min((xid for one in loose if (xid := before[one].changed_xid) is not None), default=None),
    )


def _judged(held: HeldObject, vector: bytes | None) -> HeldObject:
    """A vector that is as good as the stored one counts as the same."""
    if vector is None or held.vector is None or held.vector == vector or not as_good_as(held.vector, vector):
        return held
    return replace(held, vector=vector)


def as_good_as(held: bytes, stored: bytes) -> bool:
    """Whether two float32 vectors have the same direction, as far as float32 tells.

    A server may return what its cosine index holds: the vector with length 1.
    """
    ours, theirs = _direction(stored), _direction(held)
    if ours is None or theirs is None or len(ours) != len(theirs):
        return False
    return max(abs(one - other) for one, other in zip(ours, theirs, strict=True)) <= 1e-6


def _direction(vector: bytes) -> list[float] | None:
    values = array("f", vector)
    length = sum(value * value for value in values) ** 0.5
    return [value / length for value in values] if length > 0 else None


def _mismatch(inventory: Inventory, difference: Difference, standing: Standing, held: HeldObject | None) -> Mismatch:
    repair = None if difference.drift.foreign else _repair(inventory, difference, standing, held)
    return Mismatch(difference, repair, standing.truth.live)


def _repair(inventory: Inventory, difference: Difference, standing: Standing, held: HeldObject | None) -> Repair:
    truth = standing.truth
    of_edges = difference.drift.of_edges
    operation: Operation = "upsert" if truth.live else "delete"
    return Repair(
        target=inventory.target,
        memory_id=difference.memory_id,
        # A row that is gone cannot say whose it was, so the object in the target does.
        tenant=truth.tenant or (held.tenant if held else ""),
        user_id=truth.user_id or (held.user_id if held else ""),
        expected_version=truth.edges_version if of_edges else truth.version,
        operation=operation,
        family=Family.EDGES if of_edges else Family.NODE,
    )


async def _with_history(database: Database, mismatches: Sequence[Mismatch]) -> list[Mismatch]:
    """Mismatches whose repair has not helped are that, and nothing else, and are not repaired again."""
    hopeless = await ineffective_repairs(database, [one.repair for one in mismatches if one.repair is not None])
    return [_judged_by_history(one, hopeless) for one in mismatches]


def _judged_by_history(mismatch: Mismatch, hopeless: Mapping[str, str]) -> Mismatch:
    reason = None if mismatch.repair is None else hopeless.get(mismatch.repair.key)
    if reason is None:
        return mismatch
    difference = mismatch.difference
    detail = f"{difference.drift}, {difference.detail}; {reason}"
    return Mismatch(Difference(difference.memory_id, Drift.REPAIR_INEFFECTIVE, detail), None, mismatch.living)


def unique_repairs(mismatches: Sequence[Mismatch]) -> list[Repair]:
    """One repair per event that is needed: several edges of one source are repaired by one."""
    return list({one.repair.key: one.repair for one in mismatches if one.repair is not None}.values())
