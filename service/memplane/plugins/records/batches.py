"""Batches of WRITE, UPDATE and DELETE, checked before any database is asked. No I/O.

The contents, keys and metadata of entries are checked by `plugins.postgres.documents`, so that every store of this
project accepts and refuses the same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from memplane.contracts import JSON
from memplane.errors import PluginError
from memplane.plugins.postgres.documents import (
    NO_RESERVED,
    Content,
    Metadata,
    prepare_content,
    prepare_key,
    prepare_metadata,
)
from memplane.plugins.postgres.reserved import Reserved
from memplane.schema.canonical import invalid
from memplane.schema.ids import parse_id, quoted


@dataclass(frozen=True, slots=True)
class Draft:
    """A memory that is to be written, checked."""

    key: str | None
    content: Content
    metadata: Metadata | None

    @property
    def reserved(self) -> Reserved:
        return NO_RESERVED if self.metadata is None else self.metadata.reserved


@dataclass(frozen=True, slots=True)
class Entry:
    """One update, checked. `memory_id` is None for an id that no memory can have."""

    index: int
    public_id: str
    memory_id: int | None
    content: Content | None
    metadata: Metadata | None
    expected_version: int | None


def prepare_drafts(memories: Sequence[Mapping[str, JSON]]) -> list[Draft]:
    """Check a batch. Raises INVALID_INPUT naming the field, CONFLICT when two drafts have one key."""
    drafts: list[Draft] = []
    keys: set[str] = set()
    for index, memory in enumerate(memories):
        where = f"memories[{index}]"
        key = prepare_key(memory["key"], f"{where}.key") if "key" in memory else None
        if key is not None:
            if key in keys:
                raise PluginError("CONFLICT", f"Key {quoted(key)} appears twice in the batch")
            keys.add(key)
        content = prepare_content(memory["content"], f"{where}.content")
        metadata = prepare_metadata(memory["metadata"], f"{where}.metadata") if "metadata" in memory else None
        drafts.append(Draft(key, content, metadata))
    return drafts


def prepare_entries(memories: Sequence[Mapping[str, JSON]], *, require_expected_version: bool) -> list[Entry]:
    """Check a batch of updates. Raises INVALID_INPUT naming the field."""
    entries: list[Entry] = []
    seen: set[str] = set()
    for index, memory in enumerate(memories):
        where = f"memories[{index}]"
        if memory["id"] in seen:
            invalid(f"{where}.id appears twice in the batch")
        seen.add(memory["id"])
        expected: int | None = None
        if "expectedVersion" in memory:
            expected = check_version(memory["expectedVersion"], f"{where}.expectedVersion")
        elif require_expected_version:
            invalid(f"{where}.expectedVersion is required")
        content = prepare_content(memory["content"], f"{where}.content") if "content" in memory else None
        metadata = prepare_metadata(memory["metadata"], f"{where}.metadata") if "metadata" in memory else None
        entries.append(Entry(index, memory["id"], parse_id(memory["id"]), content, metadata, expected))
    return entries


def expected_versions(ids: Sequence[str], versions: Mapping[str, JSON] | None, *, required: bool) -> dict[str, int]:
    """`expectedVersions` of a DELETE, checked. Raises INVALID_INPUT."""
    if versions is not None and not isinstance(versions, Mapping):
        invalid("expectedVersions must be an object")
    given = versions or {}
    known = set(ids)
    for name in given:
        if name not in known:
            invalid("expectedVersions names an id that is not among ids")
    if required:
        for text in ids:
            if text not in given:
                invalid(f"expectedVersions must name every id: {quoted(text)} is missing")
    return {name: check_version(value, "expectedVersions") for name, value in given.items()}


def check_version(value: object, field: str) -> int:
    """An expected version, or INVALID_INPUT. As everywhere in the contract, 5.0 is the integer 5."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value < 2**63 or value != int(value):
        invalid(f"{field} must be a positive integer")
    return int(value)


def check_present(entry: Entry, version: int | None) -> None:
    """Raise NOT_FOUND or CONFLICT naming the id; `version` is the live memory's, None when there is none."""
    if version is None:
        raise PluginError("NOT_FOUND", f"Memory {quoted(entry.public_id)} does not exist")
    check_expected(entry.public_id, version, entry.expected_version)


def check_expected(public_id: str, version: int, expected: int | None) -> None:
    """Raise CONFLICT naming the id when a version was expected and it is another."""
    if expected is not None and expected != version:
        raise PluginError("CONFLICT", f"Memory {quoted(public_id)} is at version {version}, not {expected}")


def relation_targets(parts: Sequence[Metadata | None]) -> set[int]:
    """The ids that the relations of a batch point at."""
    return {
        relation.target
        for metadata in parts
        if metadata is not None
        for relation in metadata.reserved.relations
        if relation.target is not None
    }


def check_targets(reserved: Reserved, live: Collection[int], where: str, *, itself: int | None = None) -> None:
    """Raise INVALID_INPUT naming the relation whose target is the memory itself or no live memory of the scope."""
    for index, relation in enumerate(reserved.relations):
        if itself is not None and relation.target == itself:
            invalid(f"{where}.metadata.relations[{index}].target is the memory itself")
        if relation.target not in live:
            invalid(f"{where}.metadata.relations[{index}].target is not a memory of this scope")
