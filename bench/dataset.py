"""A million memories that are projected already: made in bulk, in pieces, so that an interrupted load goes on.

Nothing of the product writes them: the truth is copied into the tables, and Milvus gets the rows that the truth gives.
With MEMPLANE_BENCH_KEEP=1 the database and the collection stay, and the next run finds them.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache

import asyncpg
import numpy as np
import numpy.typing as npt

from bench.frame import TENANT, Bench
from bench.inputs import texts
from memplane.outbox.events import Target, Truth
from memplane.projections.generation import Generation, ensure_generation
from memplane.projections.milvus_client import MilvusConnection
from memplane.projections.milvus_collection import drop_collection, ensure_collection, kinds
from memplane.projections.milvus_row import expected
from memplane.schema.database import Database
from memplane.schema.migrate import migrate

DIMENSIONS = 64
PIECE = 20_000
CALL = 2_000
INDEX_SECONDS = 900
KEEP = "MEMPLANE_BENCH_KEEP"


@dataclass(frozen=True, slots=True)
class Space:
    """Whose vectors these are."""

    model: str = "bench"
    revision: str = "1"
    dimensions: int = DIMENSIONS


@dataclass(frozen=True, slots=True)
class Dataset:
    database: Database
    generation: Generation
    count: int


@contextlib.asynccontextmanager
async def projected(bench: Bench, count: int) -> AsyncIterator[Dataset]:
    """`count` memories in a database of their own and in Milvus; dropped afterwards unless they are to be kept."""
    name = f"memplane_bench_projected_{count}"
    await _create(bench, name)
    database = Database(bench.postgres_settings(name), application_name="memplane-bench")
    milvus = MilvusConnection(bench.stack.milvus_settings())
    try:
        await migrate(database)
        generation = await ensure_generation(database, Target.MILVUS, Space())
        await ensure_collection(milvus, generation)
        await _load(bench, database, milvus, generation, count)
        yield Dataset(database, generation, count)
        if not os.environ.get(KEEP):
            await drop_collection(milvus, generation)
    finally:
        await milvus.close()
        await database.close()
        if not os.environ.get(KEEP):
            await _execute(bench, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


async def _create(bench: Bench, name: str) -> None:
    with contextlib.suppress(asyncpg.DuplicateDatabaseError):
        await _execute(bench, f'CREATE DATABASE "{name}"')


async def _execute(bench: Bench, statement: str) -> None:
    connection = await asyncpg.connect(bench.stack.dsn(), timeout=30)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


async def _load(bench: Bench, database: Database, milvus: MilvusConnection, generation: Generation, count: int) -> None:
    async with database.acquire() as connection:
        await connection.execute("CREATE TABLE IF NOT EXISTS bench_piece (first BIGINT PRIMARY KEY)")
        done = {row["first"] for row in await connection.fetch("SELECT first FROM bench_piece")}
    missing = [first for first in range(1, count + 1, PIECE) if first not in done]
    for number, first in enumerate(missing):
        await _piece(database, milvus, generation, first, min(PIECE, count - first + 1))
        if number % 5 == 4:
            bench.say(f"loaded {first + PIECE - 1:,} of {count:,}")
    if missing:
        async with database.acquire() as connection:
            await connection.execute("VACUUM ANALYZE", timeout=600)
        await milvus.call("flush", generation.collection, timeout=120)
    await _indexed(bench, milvus, generation, count)


async def _indexed(bench: Bench, milvus: MilvusConnection, generation: Generation, count: int) -> None:
    """Wait until the index covers the rows: as long as it is being built, every read is slower."""
    for _ in range(INDEX_SECONDS):
        state = await milvus.call("describe_index", generation.collection, "vector")
        if state.get("pending_index_rows", 0) == 0:
            return
        await asyncio.sleep(1)
    bench.say(f"the index of {count:,} rows is still being built")


async def _piece(database: Database, milvus: MilvusConnection, generation: Generation, first: int, count: int) -> None:
    truths = list(_truths(first, count))
    vectors = np.random.default_rng(first).standard_normal((count, DIMENSIONS), dtype=np.float32)
    await _copy(database, truths, vectors)
    rows = [{**expected(truth, generation)[0], "vector": vector} for truth, vector in zip(truths, vectors, strict=True)]
    for start in range(0, count, CALL):
        await milvus.call("upsert", generation.collection, rows[start : start + CALL], kinds=kinds(), timeout=120)
    async with database.acquire() as connection:
        await connection.execute("INSERT INTO bench_piece VALUES ($1)", first)


def _truths(first: int, count: int) -> Sequence[Truth]:
    return [
        Truth(
            first + number,
            live=True,
            version=1,
            tenant=TENANT,
            user_id=f"user-{number % 100}",
            content_hash=hashlib.sha256(text.encode()).hexdigest(),
            importance=(number % 10) / 10,
            category=f"category-{number % 20}",
            tags=[f"tag-{number % 7}", f"tag-{number % 11}"],
            metadata={"number": number, "source": "bench"},  # in the order in which PostgreSQL returns it
            text=text,
            text_hash=hashlib.sha256(text.encode()).digest(),
        )
        for number, text in enumerate(_texts(first, count))
    ]


@cache
def _bodies() -> list[str]:
    return list(texts(PIECE))


def _texts(first: int, count: int) -> Iterator[str]:
    """Distinct texts of about 500 bytes: the same bodies in every piece, each behind its memory's number."""
    for number, body in enumerate(_bodies()[:count]):
        yield f"{first + number}: {body}"


_MEMORY = [
    "id",
    "tenant",
    "user_id",
    "content",
    "metadata",
    "importance",
    "category",
    "tags",
    "version",
    "content_hash",
    "text_hash",
    "created_at",
    "updated_at",
]
_EMBEDDING = ["tenant", "text_hash", "model", "revision", "dimensions", "vector"]


async def _copy(database: Database, truths: Sequence[Truth], vectors: npt.NDArray[np.float32]) -> None:
    now, schema = datetime.now(UTC), database.settings.schema_name
    memories = [
        (
            truth.memory_id, truth.tenant, truth.user_id, truth.text, json.dumps(truth.metadata), truth.importance,
            truth.category, truth.tags, truth.version, truth.content_hash, truth.text_hash, now, now,
        )
        for truth in truths
    ]  # fmt: skip
    space = Space()
    embeddings = [
        (truth.tenant, truth.text_hash, space.model, space.revision, space.dimensions, vector.tobytes())
        for truth, vector in zip(truths, vectors, strict=True)
    ]
    ids = [truth.memory_id for truth in truths]
    async with database.transaction() as connection:
        # A piece whose load broke off is there already.
        present = await connection.fetchval(
            database.sql("SELECT count(*) FROM {schema}.long_term_memory WHERE id = ANY ($1::bigint[])"), ids
        )
        if present:
            return
        await connection.copy_records_to_table(
            "long_term_memory", schema_name=schema, columns=_MEMORY, records=memories, timeout=300
        )
        await connection.copy_records_to_table(
            "memory_embedding", schema_name=schema, columns=_EMBEDDING, records=embeddings, timeout=300
        )
