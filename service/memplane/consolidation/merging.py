"""Many merges planned together: working copies of what they change, and which of them belong to one step. Pure.

Relations follow the merge. What the absorbed ones point to, the survivor points to; what pointed to them, points to
the survivor; a relation that would lead a memory to itself, or that it has already, goes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from memplane.consolidation.memory import Memory, Relation, Snapshot
from memplane.consolidation.policy import MergePolicy
from memplane.consolidation.rules import Group
from memplane.contracts import JSON
from memplane.errors import PluginError
from memplane.plugins.postgres.documents import prepare_content, prepare_metadata
from memplane.plugins.postgres.reserved import MAX_RELATIONS
from memplane.settings import Rule

DEFERRED: Final = "left for the next plan: the step would change too many memories"


class Refused(Exception):  # noqa: N818 - reads as what became of a group
    """A group is not merged; the text says why."""


@dataclass(frozen=True, slots=True)
class Draft:
    """What a memory is to hold. `relations` are its live ones, in order, and replace those of the metadata."""

    metadata: Mapping[str, JSON] | None
    relations: tuple[Relation, ...]
    content: JSON = None


@dataclass(slots=True)
class _Change:
    """One group, worked out but not yet taken."""

    drafts: dict[int, Draft] = field(default_factory=dict)
    ids: set[int] = field(default_factory=set)


class Merging:
    """Groups are added one by one; each sees what the earlier ones have changed.

    `limit`: memories that one step may lock.
    """

    def __init__(self, snapshot: Snapshot, policy: MergePolicy, *, limit: int) -> None:
        self._snapshot = snapshot
        self._policy = policy
        self._limit = limit
        self._drafts: dict[int, Draft] = {}
        self._pointing: dict[int, set[int]] = {}
        self._component: dict[int, set[int]] = {}
        self.absorbed: dict[int, tuple[int, Rule]] = {}
        """Absorbed id → (survivor, rule)."""
        self.survivors: set[int] = set()

    @property
    def touched(self) -> set[int]:
        """Every memory that some step locks."""
        return set(self._component)

    def add(self, group: Group) -> None:
        """Take a group. Raises `Refused`, and then has changed nothing."""
        gone = {memory_id for memory_id, _ in group.absorbed}
        change = self._work_out(group, gone)
        joined = change.ids.union(*(self._component.get(memory_id, set()) for memory_id in change.ids))
        if len(joined) > self._limit:
            raise Refused(DEFERRED)
        for memory_id, draft in change.drafts.items():
            self._take(memory_id, draft)
        for memory_id, rule in group.absorbed:
            self.absorbed[memory_id] = (group.survivor, rule)
        self.survivors.add(group.survivor)
        for memory_id in joined:
            self._component[memory_id] = joined

    def components(self) -> list[list[int]]:
        """The memories of each step, in ascending id; the steps by their first id."""
        distinct = {id(members): members for members in self._component.values()}
        return sorted(sorted(members) for members in distinct.values())

    def changed(self, memory_id: int) -> tuple[Mapping[str, JSON] | None, JSON]:
        """The new metadata and content of a memory that stays; None for what stays as it is."""
        memory = self._memory(memory_id)
        draft = self._drafts.get(memory_id)
        if draft is None:
            return None, None
        document = _document(draft)
        same = document == memory.metadata
        return None if same else document, draft.content

    def _work_out(self, group: Group, gone: set[int]) -> _Change:
        survivor = self._memory(group.survivor)
        absorbed = [self._memory(memory_id) for memory_id in sorted(gone)]
        if self._policy.needs_content and not self._snapshot.contents.keys() >= set(group.ids):
            raise Refused(DEFERRED)
        try:
            merged = self._policy.merge(survivor, absorbed, self._snapshot.contents)
        except Exception as error:
            raise Refused(f"the policy failed: {type(error).__name__}") from error
        if merged is None:
            raise Refused("the policy does not merge them")
        change = _Change(ids=set(group.ids))
        relations = [*self._relations(survivor)]
        for one in absorbed:
            relations += self._relations(one)
        kept = dict.fromkeys(one for one in relations if one[1] not in gone and one[1] != survivor.id)
        change.drafts[survivor.id] = Draft(merged.metadata, tuple(kept), merged.content)
        for source in self._sources(gone) - gone - {survivor.id}:
            change.drafts[source] = self._redirected(self._memory(source), gone, survivor.id)
            change.ids.add(source)
        for memory_id, draft in change.drafts.items():
            _check(draft, memory_id)
        return change

    def _redirected(self, source: Memory, gone: set[int], survivor: int) -> Draft:
        if self._snapshot.expired(source):
            raise Refused(f"memory {source.id}, which points to one of them, has expired and is not yet deleted")
        held = self._drafts.get(source.id) or Draft(source.metadata, self._relations(source))
        led = dict.fromkeys((kind, survivor if target in gone else target) for kind, target in held.relations)
        return replace(held, relations=tuple(led))

    def _sources(self, gone: set[int]) -> set[int]:
        """Memories that stay and point to one of `gone`, by the snapshot and by what earlier groups have changed."""
        found: set[int] = set()
        for memory_id in gone:
            incoming = self._snapshot.incoming.get(memory_id, frozenset())
            if incoming is None:
                raise Refused("too many memories point to one of them")
            found |= set(incoming) | self._pointing.get(memory_id, set())
        return {
            one
            for one in found
            if one not in self.absorbed and any(t in gone for _, t in self._relations(self._memory(one)))
        }

    def _relations(self, memory: Memory) -> tuple[Relation, ...]:
        draft = self._drafts.get(memory.id)
        return draft.relations if draft is not None else in_order(memory)

    def _take(self, memory_id: int, draft: Draft) -> None:
        self._drafts[memory_id] = draft
        for _, target in draft.relations:
            self._pointing.setdefault(target, set()).add(memory_id)

    def _memory(self, memory_id: int) -> Memory:
        found = self._snapshot.memory(memory_id)
        if found is None:
            raise Refused(f"memory {memory_id} points to one of them and is not part of the snapshot")
        return found


def in_order(memory: Memory) -> tuple[Relation, ...]:
    """The live relations of a memory in the order of its metadata."""
    listed = (memory.metadata or {}).get("relations")
    named = (
        [(one["type"], one["target"]) for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    )
    places = {relation: place for place, relation in enumerate(named)}
    last: Final = len(places)
    return tuple(sorted(memory.relations, key=lambda one: (places.get((one[0], str(one[1])), last), one)))


def _document(draft: Draft) -> Mapping[str, JSON] | None:
    """The metadata with its relations; the field is there if it was there before or has something to say."""
    if not draft.relations and (draft.metadata is None or "relations" not in draft.metadata):
        return draft.metadata
    relations: list[JSON] = [{"type": kind, "target": str(target)} for kind, target in draft.relations]
    return {**(draft.metadata or {}), "relations": relations}


def _check(draft: Draft, memory_id: int) -> None:
    if len(draft.relations) > MAX_RELATIONS:
        raise Refused(f"memory {memory_id} would have more than {MAX_RELATIONS} relations")
    try:
        document = _document(draft)
        if document is not None:
            prepare_metadata(document, "metadata")
        if draft.content is not None:
            prepare_content(draft.content, "content")
    except PluginError as error:
        raise Refused(f"what memory {memory_id} would hold is not valid: {error.safe_message}") from None
