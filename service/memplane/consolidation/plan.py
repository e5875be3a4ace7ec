"""The plan: what is to be changed in one scope, each object with the version that was read, and why. Pure.

A step is done wholly or not at all. Steps of one plan share no memory, so each holds whatever becomes of the others:
merges that touch the same memory (it points to memories of both) are one step.

Source: seed `002` section 7.1; design section 7.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from memplane.consolidation.memory import MAX_REFERRERS, Memory, Snapshot
from memplane.consolidation.merging import DEFERRED, Merging, Refused
from memplane.consolidation.policy import MergePolicy
from memplane.consolidation.rules import Findings, Group, find
from memplane.contracts import JSON, Scope
from memplane.settings import ConsolidationSettings, Rule

NO_CHANGE: Final = "it stands for memories that are merged into it"


@dataclass(frozen=True, slots=True)
class Update:
    """A memory that stays. `metadata` and `content` None: it is not changed, but must still be at this version."""

    memory_id: int
    expected_version: int
    reason: str
    metadata: Mapping[str, JSON] | None = None
    content: JSON = None

    @property
    def changes(self) -> bool:
        return self.metadata is not None or self.content is not None


@dataclass(frozen=True, slots=True)
class Delete:
    """A memory that becomes a tombstone: `superseded_by` another one, or because its time is over (None)."""

    memory_id: int
    expected_version: int
    rule: Rule
    reason: str
    superseded_by: int | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """Changes that belong together; ids ascend in both."""

    updates: tuple[Update, ...] = ()
    deletes: tuple[Delete, ...] = ()
    rule: Rule = "policy"
    """The rule of a step without deletes; deletes have their own."""

    @property
    def size(self) -> int:
        """Memories that are locked for it."""
        return len(self.updates) + len(self.deletes)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A group that was found and is not merged."""

    memory_ids: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done in one scope, as of a snapshot taken at `taken_at`."""

    scope: Scope
    taken_at: datetime
    looked_at: int
    steps: tuple[Step, ...]
    skipped: tuple[Skipped, ...] = ()

    @property
    def deferred(self) -> bool:
        """Whether the next plan will find more: a step would have become too large."""
        return any(one.reason == DEFERRED for one in self.skipped)


def plan(
    snapshot: Snapshot,
    settings: ConsolidationSettings,
    rules: Collection[Rule],
    policy: MergePolicy,
    findings: Findings | None = None,
) -> Plan:
    """The plan for a snapshot. `findings`: what `find` said for the same arguments, if it was asked already."""
    found = find(snapshot, settings, rules, policy) if findings is None else findings
    # A step of one pair always fits, whatever points to it.
    merging = Merging(snapshot, policy, limit=settings.batch_size + MAX_REFERRERS)
    skipped = [one for group in found.groups for one in _take(merging, group, settings.batch_size)]
    steps = [_merge_step(snapshot, merging, members) for members in merging.components()]
    touched = merging.touched
    for memory_id in found.expired:
        steps.append(_expiry(snapshot.memories[memory_id]))
    for memory_id, importance in found.decayed:
        if memory_id not in touched:
            steps.append(_decay(snapshot.memories[memory_id], importance))
    return Plan(snapshot.scope, snapshot.taken_at, len(snapshot.memories), tuple(steps), tuple(skipped))


def _take(merging: Merging, group: Group, limit: int) -> list[Skipped]:
    """Add a group, or as much of it as fits into a step; returns what is left of it."""
    take = min(len(group.absorbed), limit - 1)
    while True:
        part = Group(group.survivor, group.absorbed[:take])
        try:
            merging.add(part)
        except Refused as refused:
            if str(refused) != DEFERRED or take == 1:
                return [Skipped(group.ids, str(refused))]
            take //= 2
            continue
        rest = tuple(memory_id for memory_id, _ in group.absorbed[take:])
        return [Skipped(rest, DEFERRED)] if rest else []


def _merge_step(snapshot: Snapshot, merging: Merging, members: Sequence[int]) -> Step:
    updates, deletes = [], []
    for memory_id in members:
        memory = snapshot.memory(memory_id)
        assert memory is not None
        absorbed = merging.absorbed.get(memory_id)
        if absorbed is not None:
            survivor, rule = absorbed
            deletes.append(
                Delete(memory_id, memory.version, rule, f"{_WHY[rule]} of memory {survivor}", superseded_by=survivor)
            )
            continue
        metadata, content = merging.changed(memory_id)
        reason = (
            "it takes what was said by others" if memory_id in merging.survivors else "it points to what was merged"
        )
        changed = metadata is not None or content is not None
        updates.append(Update(memory_id, memory.version, reason if changed else NO_CHANGE, metadata, content))
    return Step(tuple(updates), tuple(deletes))


_WHY: Final[Mapping[Rule, str]] = {
    "exact": "a duplicate",
    "near": "a near duplicate",
    "policy": "merged by the policy, part",
}


def _expiry(memory: Memory) -> Step:
    return Step(deletes=(Delete(memory.id, memory.version, "expiry", "its time is over"),), rule="expiry")


def _decay(memory: Memory, importance: float) -> Step:
    metadata = dict(memory.metadata or {}) | {"importance": importance}
    live = live_relations(memory)
    if live is not None:
        metadata["relations"] = live
    reason = f"its importance has come down from {memory.importance} to {importance}"
    return Step(updates=(Update(memory.id, memory.version, reason, metadata),), rule="decay")


def live_relations(memory: Memory) -> list[JSON] | None:
    """The relations of a metadata without those whose edge is gone: a document that names them cannot be written."""
    listed = (memory.metadata or {}).get("relations")
    if not isinstance(listed, list):
        return None
    held = {(kind, str(target)) for kind, target in memory.relations}
    return [one for one in listed if isinstance(one, dict) and (one.get("type"), one.get("target")) in held]
