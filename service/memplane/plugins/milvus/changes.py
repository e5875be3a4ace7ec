"""WRITE, UPDATE and DELETE, one batch of a scope at a time within this process.

Milvus has no transactions and no compare-and-set. Everything is checked before the first call that changes anything; a
batch that needs several calls may be cut short by a failure. Between processes a key is kept unique by looking again
after the insert: whoever then sees another row of its key withdraws its own batch, so of two writers at most one wins.
Versions are compared and raised without a gap within one process only (`capabilities["writers"]`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from memplane.contracts import MemoryItem, Scope
from memplane.errors import PluginError
from memplane.plugins.milvus.collection import Collection, alive, now
from memplane.plugins.milvus.rows import Memory, Row, changed, memory_of, row_of
from memplane.plugins.postgres.documents import NO_RESERVED, prepare_metadata
from memplane.plugins.postgres.reserved import Reserved
from memplane.plugins.records.batches import (
    Draft,
    Entry,
    check_expected,
    check_present,
    check_targets,
    relation_targets,
)
from memplane.schema.ids import quoted

Vector = Sequence[float]


async def write(
    collection: Collection, scope: Scope, drafts: Sequence[Draft], vectors: Sequence[Vector]
) -> list[MemoryItem]:
    """Insert all drafts. Raises CONFLICT, INVALID_INPUT for a relation to nothing."""
    targets = relation_targets([draft.metadata for draft in drafts])
    live = await collection.find_ids(scope, targets) if targets else {}
    for index, draft in enumerate(drafts):
        check_targets(draft.reserved, live, f"memories[{index}]")
    keys = [draft.key for draft in drafts if draft.key is not None]
    await _free(collection, scope, keys)
    ids = await collection.draw(len(drafts))
    moment = now()
    memories = [_new(number, draft, moment) for number, draft in zip(ids, drafts, strict=True)]
    await collection.insert(
        [
            row_of(scope, memory, draft.reserved, vector)
            for memory, draft, vector in zip(memories, drafts, vectors, strict=True)
        ]
    )
    if keys:
        await _confirm(collection, scope, keys, ids)
    return [memory.item() for memory in memories]


async def update(
    collection: Collection, scope: Scope, entries: Sequence[Entry], vectors: Mapping[int, Vector]
) -> list[MemoryItem]:
    """Apply all entries; `vectors` by the entry's index, of those with a new content.

    Raises NOT_FOUND, CONFLICT, INVALID_INPUT.
    """
    targets = relation_targets([entry.metadata for entry in entries])
    ids = {entry.memory_id for entry in entries if entry.memory_id is not None}
    live = await collection.find_ids(scope, ids | targets)
    for entry in entries:
        row = None if entry.memory_id is None else live.get(entry.memory_id)
        check_present(entry, None if row is None else row["version"])
    for entry in entries:
        if entry.metadata is not None:
            check_targets(entry.metadata.reserved, live, f"memories[{entry.index}]", itself=entry.memory_id)
    held = {row["memory_id"]: row for row in await collection.bodies([live[i] for i in sorted(ids)], vectors=True)}
    moment = now()
    rows: list[Row] = []
    items: list[MemoryItem] = []
    for entry in entries:
        row = held.get(entry.memory_id or 0)
        # Another process may have deleted it since; what that one changes meanwhile is lost (see the module).
        check_present(entry, None if row is None else row["version"])
        assert row is not None
        memory = changed(memory_of(row), entry.content, entry.metadata, moment)
        rows.append(row_of(scope, memory, _reserved(entry, memory), vectors.get(entry.index, row["vector"])))
        items.append(memory.item())
    await collection.replace(rows)
    return items


async def delete(
    collection: Collection, scope: Scope, wanted: Mapping[int, str], expected: Mapping[str, int]
) -> list[str]:
    """Remove the live memories among `wanted`; their public ids in the order of `wanted`. Raises CONFLICT."""
    live = await collection.find_ids(scope, wanted)
    for number, text in wanted.items():
        if number in live:
            check_expected(text, live[number]["version"], expected.get(text))
    await collection.delete(sorted(live))
    return [text for number, text in wanted.items() if number in live]


async def _free(collection: Collection, scope: Scope, keys: Sequence[str]) -> None:
    """Raise CONFLICT when a live memory has one of the keys; expired ones are removed."""
    if not keys:
        return
    held = await collection.find_keys(scope, keys, live=False)
    if not held:
        return
    live = {row["key"] for row in await collection.find(scope, f"{alive()} and memory_id in {_ids(held)}")}
    for key in keys:
        if key in live:
            raise PluginError("CONFLICT", f"Key {quoted(key)} is taken")
    await collection.delete(_ids(held))


async def _confirm(collection: Collection, scope: Scope, keys: Sequence[str], ids: Sequence[int]) -> None:
    """Raise CONFLICT, and withdraw `ids`, when another process wrote one of the keys at the same time."""
    own = set(ids)
    for row in await collection.find_keys(scope, keys, live=True):
        if row["memory_id"] not in own:
            await collection.delete(list(ids))
            raise PluginError("CONFLICT", f"Key {quoted(row['key'])} is taken")


def _ids(rows: Sequence[Row]) -> list[int]:
    return [row["memory_id"] for row in rows]


def _new(memory_id: int, draft: Draft, moment: int) -> Memory:
    metadata = None if draft.metadata is None else draft.metadata.text
    content = draft.content
    return Memory(memory_id, draft.key, content.text, content.document is not None, metadata, 1, moment, moment)


def _reserved(entry: Entry, memory: Memory) -> Reserved:
    if entry.metadata is not None:
        return entry.metadata.reserved
    metadata = memory.item().get("metadata")
    return NO_RESERVED if metadata is None else prepare_metadata(metadata, "metadata").reserved
