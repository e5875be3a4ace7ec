"""What differs between truth and projection: a merge-join of two sorted lists, and of edge sets. Pure.

Source: seed `002` section 10.1; design section 7.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from memplane.outbox.events import Edge
from memplane.projections.neo4j_edges import HeldEdge


class Drift(StrEnum):
    """The kinds of difference."""

    MISSING = "missing"
    """The truth has it, the target does not."""
    STALE = "stale"
    """The target holds an older version."""
    HASH = "hash"
    """Same version, other content: what the target holds does not fit the truth's digest."""
    ORPHAN = "orphan"
    """The target holds it, the truth does not, or has deleted it."""
    AHEAD = "ahead"
    """The target holds a newer version than the truth (a restored database)."""
    EDGE_MISSING = "edge_missing"
    EDGE_STALE = "edge_stale"
    EDGE_HASH = "edge_hash"
    EDGE_ORPHAN = "edge_orphan"
    EDGE_AHEAD = "edge_ahead"
    EDGE_ENDPOINT = "edge_endpoint"
    """The relation is there, but ends at another memory."""
    EDGE_TYPE = "edge_type"
    """The relation is there, but has another type."""
    EDGE_DANGLING = "edge_dangling"
    """An edge that the truth does not have ends at nothing: no memory of this backend, or one that is not projected."""
    FOREIGN = "foreign"
    """An object of another backend among ours: reported, never touched."""
    EDGE_FOREIGN = "edge_foreign"
    """A relation of another backend that begins at a memory of ours: reported, never touched."""
    REPAIR_INEFFECTIVE = "repair_ineffective"
    """It differs, and repairing has not helped: a repair is dead, or there were too many. See `history.py`."""

    @property
    def of_edges(self) -> bool:
        return self.value.startswith("edge_")

    @property
    def foreign(self) -> bool:
        return self in (Drift.FOREIGN, Drift.EDGE_FOREIGN)


@dataclass(frozen=True, slots=True)
class Expected:
    """What the target should hold of one live memory."""

    memory_id: int
    version: int
    projection_hash: str
    vector: bytes | None = None
    """Float32 values, or their digest: compared for equality alone. None: not compared."""


@dataclass(frozen=True, slots=True)
class HeldObject:
    """What the target holds of one memory. `computed` is the digest of the fields that it holds now."""

    memory_id: int
    version: int | None
    projection_hash: str
    computed: str
    tenant: str = ""
    user_id: str = ""
    needed: bool = False
    """A bare node at the end of an edge: it is no drift by itself."""
    vector: bytes | None = None
    foreign: str | None = None
    """The backend that says it owns it, when that is another one."""


@dataclass(frozen=True, slots=True)
class Difference:
    memory_id: int
    drift: Drift
    detail: str = ""


def diff_objects(expected: Sequence[Expected], held: Sequence[HeldObject]) -> Iterator[Difference]:
    """Differences of one id range; both sides sorted by memory id, without duplicates."""
    left, right = 0, 0
    while left < len(expected) or right < len(held):
        want = expected[left] if left < len(expected) else None
        have = held[right] if right < len(held) else None
        if have is None or (want is not None and want.memory_id < have.memory_id):
            assert want is not None
            left += 1
            yield Difference(want.memory_id, Drift.MISSING, f"version {want.version}")
        elif want is None or have.memory_id < want.memory_id:
            right += 1
            if have.foreign is not None:
                yield Difference(have.memory_id, Drift.FOREIGN, _owner(have))
            elif not have.needed:
                yield Difference(have.memory_id, Drift.ORPHAN, f"version {have.version}")
        else:
            left, right = left + 1, right + 1
            if have.foreign is not None:
                yield Difference(
                    want.memory_id, Drift.FOREIGN, f"{_owner(have)}, in the place of our version {want.version}"
                )
            elif (drift := compare(want, have)) is not None:
                yield Difference(want.memory_id, drift, _detail(want, have, drift))


def _owner(have: HeldObject) -> str:
    return f"of backend {have.foreign}"


def _detail(want: Expected, have: HeldObject, drift: Drift) -> str:
    if drift is not Drift.HASH:
        return f"version {have.version}, the truth has {want.version}"
    what = "vector" if have.projection_hash == have.computed == want.projection_hash else "fields"
    return f"version {have.version}: its {what} differ" + ("s" if what == "vector" else "")


def compare(want: Expected, have: HeldObject) -> Drift | None:
    """The drift between a live memory and what the target holds of it; None when there is none."""
    if have.version is None:
        return Drift.MISSING
    if have.version < want.version:
        return Drift.STALE
    if have.version > want.version:
        return Drift.AHEAD
    if have.projection_hash != want.projection_hash or have.computed != want.projection_hash:
        return Drift.HASH
    if want.vector is not None and have.vector is not None and have.vector != want.vector:
        return Drift.HASH
    return None


def diff_edges(
    wanted: Mapping[int, Sequence[Edge]], held: Mapping[int, Sequence[HeldEdge]], bare: frozenset[int], backend: str
) -> Iterator[Difference]:
    """Differences of the outgoing edges, by source; several of one source are possible.

    `bare`: the memory ids among the ends of held edges that have no projected node.
    """
    for source in sorted({*wanted, *held}):
        for drift, detail in _diff_source(wanted.get(source, ()), held.get(source, ()), bare, backend):
            yield Difference(source, drift, detail)


def _diff_source(
    wanted: Sequence[Edge], held: Sequence[HeldEdge], bare: frozenset[int], backend: str
) -> Iterator[tuple[Drift, str]]:
    missing = {(edge.type, edge.target_id): edge for edge in wanted}
    surplus: list[HeldEdge] = []
    for edge in held:
        if edge.backend is not None and edge.backend != backend:
            yield Drift.EDGE_FOREIGN, f"{edge.type} to {edge.target_id}, of backend {edge.backend}"
            continue
        want = missing.pop((edge.type, edge.target_id), None)  # type: ignore[arg-type]  # None matches no key
        if want is None:
            surplus.append(edge)
        elif (drift := _compare_edge(want, edge)) is not None:
            yield drift, f"{want.type} to {want.target_id}"
    by_relation = {edge.relation_hash: edge for edge in missing.values()}
    for edge in surplus:
        moved = by_relation.pop(edge.relation_hash, None)  # type: ignore[arg-type]
        if moved is not None:
            del missing[moved.type, moved.target_id]
            drift = Drift.EDGE_TYPE if edge.target_id == moved.target_id else Drift.EDGE_ENDPOINT
            yield drift, f"{edge.type} to {edge.target_id} instead of {moved.type} to {moved.target_id}"
        elif edge.target_id is None or edge.target_id in bare:
            yield Drift.EDGE_DANGLING, f"{edge.type} to {edge.target_id}"
        else:
            yield Drift.EDGE_ORPHAN, f"{edge.type} to {edge.target_id}"
    for kind, target in missing:
        yield Drift.EDGE_MISSING, f"{kind} to {target}"


def _compare_edge(want: Edge, have: HeldEdge) -> Drift | None:
    if have.version is None or have.version < want.version:
        return Drift.EDGE_STALE
    if have.version > want.version:
        return Drift.EDGE_AHEAD
    if have.relation_hash != want.relation_hash or have.backend is None:
        return Drift.EDGE_HASH
    return None
