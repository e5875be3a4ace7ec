"""Snapshots made by hand for the pure part, and a user's memories in a real database."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from memplane.consolidation import Job, KeepPolicy, Memory, MergePolicy, Report, Snapshot, consolidate
from memplane.contracts import CallOptions, Scope
from memplane.outbox.events import Target
from memplane.plugins.postgres.backend import PostgresBackend
from memplane.plugins.postgres.writing import Writing
from memplane.projections.embedding import pack
from memplane.schema.database import Database
from memplane.settings import ConsolidationSettings, Rule

NOW = datetime(2026, 1, 31, tzinfo=UTC)
SCOPE = Scope("acme", "ann")
SETTINGS = ConsolidationSettings(near_threshold=0.9, half_life_seconds=86400)
KEEP = KeepPolicy()


def memory(number: int, text: str | None = None, **fields: Any) -> Memory:
    """A memory; `relations` are (type, target), and fill the metadata, like `importance`, `tags` and the others do."""
    metadata = dict(fields.pop("metadata", None) or {})
    relations = frozenset(fields.pop("relations", ()))
    if relations:
        metadata["relations"] = [{"type": kind, "target": str(target)} for kind, target in sorted(relations)]
    for name in ("importance", "category", "slot_hint"):
        if fields.get(name) is not None:
            metadata[name] = fields[name]
    if fields.get("expires_at") is not None:
        metadata["expires_at"] = fields["expires_at"].isoformat()
    fields.setdefault("created_at", NOW - timedelta(days=10))
    fields.setdefault("updated_at", fields["created_at"])
    fields.setdefault("version", number)
    content = f"text {number}" if text is None else text
    return Memory(
        id=number,
        text_hash=hashlib.sha256(content.encode()).digest(),
        metadata=metadata or None,
        relations=relations,
        **fields,
    )


def snapshot(memories: Iterable[Memory], vectors: Mapping[int, Iterable[float]] | None = None) -> Snapshot:
    """A snapshot of these memories alone, with the edges between them."""
    by_id = {one.id: one for one in memories}
    incoming: dict[int, set[int]] = {}
    for one in by_id.values():
        for _, target in one.relations:
            incoming.setdefault(target, set()).add(one.id)
    return Snapshot(
        SCOPE,
        NOW,
        by_id,
        {number: array("f", vector) for number, vector in (vectors or {}).items()},
        {target: frozenset(sources) for target, sources in incoming.items()},
    )


def job(*rules: Rule, policy: MergePolicy = KEEP, **settings: Any) -> Job:
    """A consolidation with these rules."""
    return Job(SETTINGS.model_copy(update=settings), frozenset(rules), policy)


class User:
    """One user's memories in a real database, written and read through the store."""

    def __init__(
        self, database: Database, *, targets: Iterable[Target] = tuple(Target), user: str = "ann", tenant: str = "acme"
    ) -> None:
        self.database = database
        self.scope = Scope(tenant, user)
        self.writing = Writing(database, frozenset(targets))
        self.store = PostgresBackend(database, targets=targets).scoped(self.scope)

    async def write(self, *texts: Any, **metadata: Any) -> list[int]:
        """Memories with these contents and this metadata; returns their ids."""
        drafts: Any = [{"content": text, "metadata": metadata} if metadata else {"content": text} for text in texts]
        return [int(item["id"]) for item in await self.store.write({"memories": drafts}, CallOptions())]

    async def write_keyed(self, key: str, text: str) -> int:
        drafts: Any = [{"key": key, "content": text}]
        return int((await self.store.write({"memories": drafts}, CallOptions()))[0]["id"])

    async def update(self, memory_id: int, **fields: Any) -> None:
        entries: Any = [{"id": str(memory_id), **fields}]
        await self.store.update({"memories": entries}, CallOptions())

    async def delete(self, *memory_ids: int) -> None:
        await self.store.delete({"ids": [str(one) for one in memory_ids]}, CallOptions())

    async def items(self) -> dict[int, Any]:
        """Every live memory by id."""
        page = await self.store.query({"limit": 1000}, CallOptions())
        return {int(item["id"]): item for item in page["items"]}

    async def consolidate(self, wanted: Job, **options: Any) -> Report:
        return await consolidate(self.writing, self.scope, wanted, **options)

    async def rows(self, statement: str, *arguments: object) -> list[dict[str, Any]]:
        async with self.database.acquire() as connection:
            return [dict(row) for row in await connection.fetch(self.database.sql(statement), *arguments)]

    async def edges(self) -> set[tuple[int, str, int]]:
        """Every live edge."""
        found = await self.rows("SELECT source_id, type, target_id FROM {schema}.memory_edge WHERE deleted_at IS NULL")
        return {(row["source_id"], row["type"], row["target_id"]) for row in found}

    async def age(self, seconds: float) -> None:
        """Let this time pass for every memory: only the clock of the database could do it otherwise."""
        statement = "UPDATE {schema}.long_term_memory SET updated_at = updated_at - $1 * interval '1 second'"
        await self.rows(statement, seconds)

    async def embed(self, vectors: Mapping[str, Iterable[float]]) -> None:
        """Store embeddings of these texts, of a generation that is active."""
        await self.rows(
            "INSERT INTO {schema}.projection_generation"
            " (target, state, collection, embedding_model, embedding_revision, dimensions)"
            " VALUES ('milvus', 'active', 'none', 'hand', '1', 2) ON CONFLICT DO NOTHING"
        )
        for text, vector in vectors.items():
            await self.rows(
                "INSERT INTO {schema}.memory_embedding (tenant, text_hash, model, revision, dimensions, vector)"
                " VALUES ('acme', $1, 'hand', '1', 2, $2)",
                hashlib.sha256(text.encode()).digest(),
                pack(array("f", vector)),
            )
