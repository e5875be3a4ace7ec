"""A store with shorter calls, and looks behind it that only tests take."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from memplane.contracts import CallOptions, MemoryItem
from memplane.plugins.postgres.hashes import Hashed, content_hash, relation_hash
from memplane.plugins.postgres.store import PostgresStore
from memplane.schema.canonical import canonical
from memplane.schema.database import Database
from memplane.signal import Signal


class Calls:
    """The contract's five methods without their envelopes."""

    def __init__(self, store: PostgresStore) -> None:
        self.store = store

    async def write(self, *memories: Any, signal: Signal | None = None) -> list[MemoryItem]:
        drafts = [memory if isinstance(memory, dict) else {"content": memory} for memory in memories]
        return list(await self.store.write({"memories": drafts}, CallOptions(signal)))

    async def one(self, content: Any, **fields: Any) -> MemoryItem:
        return (await self.write({"content": content, **fields}))[0]

    async def update(self, *memories: Any) -> list[MemoryItem]:
        return list(await self.store.update({"memories": list(memories)}, CallOptions()))

    async def delete(self, *ids: str, versions: Mapping[str, int] | None = None) -> list[str]:
        input: Any = {"ids": list(ids)}
        if versions is not None:
            input["expectedVersions"] = versions
        return (await self.store.delete(input, CallOptions()))["deleted"]

    async def get(self, *ids: str, keys: Sequence[str] = ()) -> list[MemoryItem]:
        items = await self.store.get({"ids": list(ids), "keys": list(keys)}, CallOptions())
        return sorted(items, key=lambda item: int(item["id"]))

    async def query(self, limit: int = 10_000, **input: Any) -> Any:
        return await self.store.query({"limit": limit, **input}, CallOptions())

    async def ids(self, **input: Any) -> list[str]:
        return [item["id"] for item in (await self.query(**input))["items"]]


async def rows(database: Database, statement: str, *arguments: object) -> list[dict[str, Any]]:
    async with database.acquire() as connection:
        return [dict(row) for row in await connection.fetch(database.sql(statement), *arguments)]


async def memories(database: Database) -> dict[int, dict[str, Any]]:
    found = await rows(database, "SELECT * FROM {schema}.long_term_memory ORDER BY id")
    return {row["id"]: row for row in found}


async def edges(database: Database, *, live: bool = True) -> set[tuple[int, str, int]]:
    found = await rows(
        database,
        "SELECT source_id, type, target_id FROM {schema}.memory_edge WHERE NOT $1 OR deleted_at IS NULL",
        live,
    )
    return {(row["source_id"], row["type"], row["target_id"]) for row in found}


async def pending(database: Database) -> set[tuple[int, str, int]]:
    """Memory, event type and version of what waits."""
    found = await rows(
        database,
        "SELECT aggregate_id, event_type, aggregate_version FROM {schema}.memory_outbox WHERE status = 'pending'",
    )
    return {(row["aggregate_id"], row["event_type"], row["aggregate_version"]) for row in found}


async def expire_now(database: Database, *ids: str) -> None:
    """Let time pass for these memories, without touching anything else."""
    await rows(
        database,
        "UPDATE {schema}.long_term_memory SET expires_at = now() - interval '1 second' WHERE id = ANY($1)",
        [int(text) for text in ids],
    )


def recomputed_hash(row: Mapping[str, Any]) -> str:
    """The content hash of a row as it is stored, from nothing but the row."""
    return content_hash(
        Hashed(
            memory_id=row["id"],
            tenant=row["tenant"],
            user_id=row["user_id"],
            key=row["key"],
            text_hash=row["text_hash"],
            is_document=row["document"] is not None,
            metadata=None if row["metadata"] is None else canonical(json.loads(row["metadata"])),
            importance=row["importance"],
            category=row["category"],
            tags=row["tags"],
            slot_hint=row["slot_hint"],
            expires_at=row["expires_at"],
            version=row["version"],
            deleted_at=row["deleted_at"],
        )
    )


async def assert_sound(database: Database) -> None:
    """What must hold in every state: hashes fit their rows, no edge has a dead end, versions of edges add up."""
    held = await memories(database)
    for row in held.values():
        assert row["content_hash"] == recomputed_hash(row), row
    for edge in await rows(database, "SELECT * FROM {schema}.memory_edge"):
        source, target = held[edge["source_id"]], held[edge["target_id"]]
        assert edge["version"] <= source["edges_version"]
        assert (edge["tenant"], edge["user_id"]) == (source["tenant"], source["user_id"])
        assert edge["relation_hash"] == relation_hash(
            source_id=edge["source_id"],
            kind=edge["type"],
            target_id=edge["target_id"],
            tenant=edge["tenant"],
            user_id=edge["user_id"],
            version=edge["version"],
            deleted=edge["deleted_at"] is not None,
        )
        if edge["deleted_at"] is None:
            assert source["deleted_at"] is None
            assert target["deleted_at"] is None
            assert (target["tenant"], target["user_id"]) == (source["tenant"], source["user_id"])
