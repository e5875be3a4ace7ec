"""Filling a database through the SDK and letting the product's own workers project it."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Collection, Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt

from bench.frame import DIMENSIONS, TENANT, Bench, verify
from bench.inputs import drafts, text_hash, vectors
from memplane.contracts import EmbeddingProvider, Scope
from memplane.nodes.memory import create_memory
from memplane.outbox.events import ProjectionTarget, Target
from memplane.outbox.worker import OutboxWorker
from memplane.plugins.embeddings.hashing import HashingEmbedding, HashingSettings
from memplane.plugins.postgres.backend import PostgresBackend
from memplane.projections.embedding import StoredEmbeddings
from memplane.retrieval import embed_contents
from memplane.schema.database import Database
from memplane.settings import OutboxSettings
from memplane.signal import Signal

BATCH = 500
SCOPE = Scope(TENANT, "reader")
PROVIDER: EmbeddingProvider = HashingEmbedding(HashingSettings(dimensions=DIMENSIONS))


async def populate(
    database: Database,
    count: int,
    targets: Collection[Target],
    *,
    scope: Scope = SCOPE,
    seed: int = 1,
    relate: bool = False,
) -> list[int]:
    """Write `count` distinct memories and store a random vector for each text; returns the ids in order.

    With `relate` every second memory points to one written before it.
    """
    backend = PostgresBackend(database, targets=frozenset(targets))
    await backend.start()
    memory = create_memory(store=backend.scoped(scope))
    ids: list[int] = []
    generator = random.Random(seed)
    entries = drafts(count, seed=seed)
    while batch := list(islice(entries, BATCH)):
        for draft in batch[::2] if relate and ids else ():
            relation = {"type": "related", "target": str(generator.choice(ids))}
            draft["metadata"] = {**draft["metadata"], "relations": [relation]}
        items = (await memory.write({"memories": batch})).unwrap()
        await _store_vectors(database, [str(one["content"]) for one in batch], scope, seed=seed + len(ids))
        ids += [int(item["id"]) for item in items]
    await backend.close()
    async with database.acquire() as connection:
        await connection.execute(database.sql("ANALYZE {schema}.long_term_memory"))
    return ids


def stored_vectors(count: int, *, seed: int = 1) -> npt.NDArray[np.float32]:
    """The vectors that `populate` stores for `count` memories, in order."""
    return np.concatenate([vectors(min(BATCH, count - start), seed=seed + start) for start in range(0, count, BATCH)])


async def _store_vectors(database: Database, texts: Sequence[str], scope: Scope, *, seed: int) -> None:
    made = vectors(len(texts), seed=seed)
    rows = [
        (scope.tenant, text_hash(text), PROVIDER.model, PROVIDER.revision, DIMENSIONS, row.astype("<f4").tobytes())
        for text, row in zip(texts, made, strict=True)
    ]
    async with database.acquire() as connection:
        await connection.copy_records_to_table(
            "memory_embedding",
            schema_name=database.settings.schema_name,
            columns=["tenant", "text_hash", "model", "revision", "dimensions", "vector"],
            records=rows,
        )


def stored_embeddings(database: Database) -> StoredEmbeddings:
    async def embed(provider: EmbeddingProvider, texts: Sequence[str], batch_size: int) -> Sequence[Sequence[float]]:
        return await embed_contents(provider, texts, batch_size=batch_size, purpose="document")

    return StoredEmbeddings(database, PROVIDER, embed)


async def drain(
    bench: Bench, database: Database, target: ProjectionTarget, settings: OutboxSettings | None = None
) -> float:
    """Run one outbox worker until every event of the target is processed; returns the seconds it took."""
    worker = OutboxWorker(database, target, settings or OutboxSettings())
    stop = Signal()
    await target.start()
    count = await unfinished(database, target.name)
    started = time.perf_counter()
    running = asyncio.create_task(worker.run(stop))
    try:
        while (left := await unfinished(database, target.name)) > 0:
            verify(not running.done(), "the worker ended before its events did")
            await asyncio.sleep(0.02 if left < 2000 else 0.2)
        took = time.perf_counter() - started
    finally:
        stop.abort()
        await running
    async with database.acquire() as connection:
        states = await connection.fetch(
            database.sql("SELECT status, count(*) FROM {schema}.memory_outbox WHERE target = $1 GROUP BY status"),
            target.name.value,
        )
    verify({row["status"]: row["count"] for row in states} == {"processed": count}, f"events ended as {states}")
    bench.say(f"{target.name.value}: {count} events in {took:.1f} s, {count / took:,.0f}/s")
    return took


async def unfinished(database: Database, target: Target) -> int:
    """Events of the target that still wait or are in flight."""
    async with database.acquire() as connection:
        found = await connection.fetchval(
            database.sql(
                "SELECT count(*) FROM {schema}.memory_outbox WHERE target = $1 AND status IN ('pending', 'processing')"
            ),
            target.value,
        )
    return int(found)
