"""What is to be done with the memories of a snapshot: expired ones, duplicates, near duplicates, decay. Pure.

Source: seed `002` section 7; design section 7.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from memplane.consolidation.memory import Memory, Snapshot
from memplane.consolidation.policy import MergePolicy, PolicyFailed
from memplane.consolidation.similarity import stars
from memplane.settings import ConsolidationSettings, Rule

MERGING: Final[frozenset[Rule]] = frozenset({"exact", "near", "policy"})


@dataclass(frozen=True, slots=True)
class Group:
    """Memories that become one. `absorbed` are (id, the rule that found it), and never hold a key that is another."""

    survivor: int
    absorbed: tuple[tuple[int, Rule], ...]

    @property
    def ids(self) -> tuple[int, ...]:
        return (self.survivor, *(memory_id for memory_id, _ in self.absorbed))


@dataclass(frozen=True, slots=True)
class Findings:
    """What the rules found; every memory is in at most one place."""

    expired: tuple[int, ...]
    groups: tuple[Group, ...]
    decayed: tuple[tuple[int, float], ...]
    """Id and its new importance."""

    @property
    def members(self) -> set[int]:
        """Ids of all groups."""
        return {memory_id for group in self.groups for memory_id in group.ids}


def find(snapshot: Snapshot, settings: ConsolidationSettings, rules: Collection[Rule], policy: MergePolicy) -> Findings:
    """What the chosen rules find in a snapshot. Needs neither its contents nor its relations."""
    expired = {one.id for one in snapshot.memories.values() if snapshot.expired(one)}
    live = [one for _, one in sorted(snapshot.memories.items()) if one.id not in expired]
    groups = _groups(snapshot, live, settings, rules, policy)
    grouped = {memory_id for group in groups for memory_id in group.ids}
    decayed = (
        [
            (one.id, importance)
            for one in live
            if one.id not in grouped
            and (importance := decayed_importance(one, snapshot.taken_at, settings)) is not None
        ]
        if "decay" in rules
        else []
    )
    return Findings(tuple(sorted(expired)) if "expiry" in rules else (), tuple(groups), tuple(decayed))


def decayed_importance(memory: Memory, now: datetime, settings: ConsolidationSettings) -> float | None:
    """The importance that a memory has come down to since its last change; None while that is too little to write.

    It halves every `half_life_seconds`. Since writing it is a change, the next decay goes on from there, and the curve
    is the same however often it is applied.
    """
    if memory.importance is None:
        return None
    age = (now - memory.updated_at).total_seconds()
    decayed = round(memory.importance * 0.5 ** (max(age, 0.0) / settings.half_life_seconds), 6)
    return decayed if memory.importance - decayed >= settings.minimum_decay else None


def _groups(
    snapshot: Snapshot,
    live: Sequence[Memory],
    settings: ConsolidationSettings,
    rules: Collection[Rule],
    policy: MergePolicy,
) -> list[Group]:
    twins = _exact(live) if "exact" in rules else {}
    absorbed = {memory_id for ids in twins.values() for memory_id in ids}
    heads = [one for one in live if one.id not in absorbed]
    near = _near(snapshot, heads, settings.near_threshold) if "near" in rules else {}
    groups = [_join(head, near.get(head, []), twins) for head in sorted({*twins, *near} - _members(near))]
    if "policy" in rules:
        taken = {memory_id for group in groups for memory_id in group.ids}
        groups += _of_policy([one for one in live if one.id not in taken], policy)
    return groups


def _members(near: dict[int, list[int]]) -> set[int]:
    return {memory_id for ids in near.values() for memory_id in ids}


def _join(head: int, near: Iterable[int], twins: dict[int, list[int]]) -> Group:
    """A head with its twins, its near ones, and the twins of those."""
    absorbed: list[tuple[int, Rule]] = [(twin, "exact") for twin in twins.get(head, ())]
    for member in near:
        absorbed.append((member, "near"))
        absorbed += [(twin, "near") for twin in twins.get(member, ())]
    return Group(head, tuple(absorbed))


def _exact(live: Sequence[Memory]) -> dict[int, list[int]]:
    """Survivor → those that hold the same. The one with a key survives, else the oldest; others with keys stay."""
    same: dict[tuple[bytes, bool], list[Memory]] = {}
    for one in live:
        same.setdefault((one.text_hash, one.is_document), []).append(one)
    found: dict[int, list[int]] = {}
    for group in same.values():
        survivor = min(group, key=lambda one: (one.key is None, one.id))
        if absorbed := [one.id for one in group if one is not survivor and one.key is None]:
            found[survivor.id] = absorbed
    return found


def _near(snapshot: Snapshot, heads: Sequence[Memory], threshold: float) -> dict[int, list[int]]:
    """Survivor → its near duplicates, of one category and slot. Preferred: keyed, important, lately changed."""
    candidates = [one for one in heads if one.id in snapshot.vectors]
    candidates.sort(key=lambda one: (one.key is None, -(one.importance or 0.0), -one.updated_at.timestamp(), -one.id))
    kinds: dict[tuple[str | None, str | None, bool], int] = {}
    found = stars(
        [snapshot.vectors[one.id] for one in candidates],
        [kinds.setdefault((one.category, one.slot_hint, one.is_document), len(kinds)) for one in candidates],
        [one.key is not None for one in candidates],
        threshold=threshold,
    )
    return {candidates[centre].id: [candidates[member].id for member in members] for centre, members in found}


def _of_policy(free: Sequence[Memory], policy: MergePolicy) -> list[Group]:
    """The policy's own groups, as far as they are of free memories, disjoint, and lose no key."""
    left = {one.id: one for one in free}
    groups: list[Group] = []
    try:
        proposed = [list(ids) for ids in policy.groups(free)]
    except Exception as error:
        raise PolicyFailed(type(error).__name__) from error
    for ids in proposed:
        members = [left[memory_id] for memory_id in dict.fromkeys(ids) if memory_id in left]
        keyed = [one for one in members if one.key is not None]
        whole = len(members) == len(ids) > 1
        if not whole or len(keyed) > 1 or (keyed and keyed[0] is not members[0]):
            continue
        for one in members:
            del left[one.id]
        groups.append(Group(members[0].id, tuple((one.id, "policy") for one in members[1:])))
    return groups
