"""The outgoing edges of a memory: which of those in the graph stay, go or are written. Pure.

A source's edges are projected as exactly its live set. A stored edge or edge set that is newer than the truth (a
restored database) is left alone, unless the event is a repair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memplane.outbox.events import Edge, Verdict


@dataclass(frozen=True, slots=True)
class HeldEdge:
    """An edge in the graph. `reference` is the graph's own id of it; what a hand left out or spoiled is None."""

    reference: str
    target_id: int | None
    type: str | None
    version: int | None
    relation_hash: str | None
    backend: str | None = None


def whole(value: object) -> int | None:
    """A version as the graph holds it; None for what a hand made of it."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def held_edge(edge: Mapping[str, Any]) -> HeldEdge:
    """An edge as a query returns it."""
    return HeldEdge(
        edge["reference"],
        edge["target_id"],
        edge["type"],
        whole(edge["version"]),
        edge["relation_hash"],
        edge["backend"],
    )


@dataclass(frozen=True, slots=True)
class EdgePlan:
    """What one source needs: edges to delete (by reference), edges to create or overwrite, and the verdict."""

    verdict: Verdict
    delete: Sequence[str] = ()
    put: Sequence[Edge] = ()


def plan_edges(
    held: Sequence[HeldEdge],
    wanted: Sequence[Edge],
    *,
    backend: str,
    version: int,
    held_version: int | None,
    repair: bool,
) -> EdgePlan:
    """Compare the edges of one source in the graph with its live set at edge version `version`.

    `held_version` is the version of the set that the graph says it holds. A live edge that is there twice is kept once.
    """
    newest = max([held_version or 0, *(edge.version or 0 for edge in held)])
    ahead = newest > version
    if ahead and not repair:
        return EdgePlan(Verdict.AHEAD)
    missing = {(edge.type, edge.target_id): edge for edge in wanted}
    delete: list[str] = []
    put: list[Edge] = []
    conflict = False
    for edge in held:
        want = missing.pop((edge.type, edge.target_id), None)  # type: ignore[arg-type]  # None matches no key
        if want is None:
            delete.append(edge.reference)
        elif (edge.version, edge.relation_hash, edge.backend) != (want.version, want.relation_hash, backend):
            conflict = conflict or edge.version == want.version
            delete.append(edge.reference)
            put.append(want)
    put.extend(missing.values())
    if ahead:
        return EdgePlan(Verdict.AHEAD, delete, put)
    if not delete and not put:
        same = held_version == version or not wanted
        return EdgePlan(Verdict.UNCHANGED if same else Verdict.APPLIED)
    return EdgePlan(Verdict.CONFLICT if conflict else Verdict.APPLIED, delete, put)
