"""Candidates become mismatches only after a second, careful look (design section 7).

The scan reads the truth and the target at different moments, so what it finds may be a change on its way. A candidate
counts when the truth, looked at before and after a strong read of the target, has not moved, no event of it is
unfinished, and the difference is still there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from memplane.outbox.enqueue import Operation, Repair
from memplane.outbox.events import Family
from memplane.reconcile.diff import Difference, diff_edges, diff_objects
from memplane.reconcile.inventory import Inventory
from memplane.reconcile.truth import Standing, edges_of, standings
from memplane.schema.database import Database


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A confirmed difference and the event that repairs it."""

    difference: Difference
    repair: Repair


async def confirm(database: Database, inventory: Inventory, candidates: Iterable[Difference]) -> list[Mismatch]:
    """Those of the candidates that are drift. They may turn out to be of another kind than the scan said."""
    ids = sorted({candidate.memory_id for candidate in candidates})
    if not ids:
        return []
    before = await standings(database, inventory.needs, inventory.target, ids)
    still = [memory_id for memory_id in ids if not (before[memory_id].busy or before[memory_id].expired)]
    if not still:
        return []
    held = {one.memory_id: one for one in await inventory.objects_of(still)}
    wanted_edges = await edges_of(database, still) if inventory.holds_edges else {}
    held_edges = await inventory.edges_of(still)
    after = await standings(database, inventory.needs, inventory.target, still)
    firm = [memory_id for memory_id in still if before[memory_id].same(after[memory_id])]
    expected = [inventory.expected(after[one].truth) for one in firm if after[one].truth.live]
    found = [
        *diff_objects(expected, [held[one] for one in firm if one in held]),
        *diff_edges(
            {one: wanted_edges[one] for one in firm if one in wanted_edges},
            {one: held_edges.by_source[one] for one in firm if one in held_edges.by_source},
            held_edges.bare,
            inventory.backend,
        ),
    ]
    owners = {one.memory_id: (one.tenant, one.user_id) for one in held.values()}
    return [
        Mismatch(
            difference,
            _repair(inventory, difference, after[difference.memory_id], owners.get(difference.memory_id, ("", ""))),
        )
        for difference in found
    ]


def _repair(inventory: Inventory, difference: Difference, standing: Standing, owner: tuple[str, str]) -> Repair:
    truth = standing.truth
    of_edges = difference.drift.of_edges
    operation: Operation = "upsert" if truth.live else "delete"
    return Repair(
        target=inventory.target,
        memory_id=difference.memory_id,
        # A row that is gone cannot say whose it was, so the object in the target does.
        tenant=truth.tenant or owner[0],
        user_id=truth.user_id or owner[1],
        expected_version=truth.edges_version if of_edges else truth.version,
        operation=operation,
        family=Family.EDGES if of_edges else Family.NODE,
    )


def unique_repairs(mismatches: Sequence[Mismatch]) -> list[Repair]:
    """One repair per event that is needed: several edges of one source are repaired by one."""
    return list({mismatch.repair.key: mismatch.repair for mismatch in mismatches}.values())
