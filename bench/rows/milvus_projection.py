"""Milvus projection, rows a second until a Strong read shows them all, beside plain pymilvus upserting the same rows.

Embeddings are given: they are stored before the clock starts. The product is one outbox worker with its defaults. The
peer gets the very rows that the product has projected, vectors included, and upserts them into an equal collection in
the batch size that suits it best. Medians of three rounds.
"""

from __future__ import annotations

import time
from typing import Any

from pymilvus import MilvusClient

from bench.frame import Bench, Result, median, verify
from bench.load import drain, populate, stored_embeddings
from memplane.outbox.events import Target
from memplane.projections.clients import open_milvus
from memplane.projections.milvus import MilvusProjection
from memplane.projections.milvus_collection import INDEX

NAME = "milvus"
TITLE = "Milvus projection, visible by a Strong read"
PEER_BATCHES = (500, 1000, 2000)


ROUNDS = 3


async def run(bench: Bench) -> Result:
    count = bench.size(20_000, 2_000)
    rounds = [await _round(bench, count) for _ in range(bench.size(ROUNDS, 1))]
    ours, theirs = (median(seconds) for seconds in zip(*rounds, strict=True))
    return Result(TITLE, count / ours, "rows/s", True, count / theirs, "pymilvus upsert", 0.7)


async def _round(bench: Bench, count: int) -> tuple[float, float]:
    """The seconds of the product, and of the peer in its best batch size."""
    async with bench.database() as database:
        await populate(database, count, [Target.MILVUS])
        milvus = await open_milvus(bench.stack.milvus_settings())
        projection = MilvusProjection(database, milvus, stored_embeddings(database))
        generation = await projection.generation()
        client = plain_client(bench)
        try:
            before = time.perf_counter()
            await drain(bench, database, projection)
            verify(strong_count(client, generation.collection) == count, "rows are missing in Milvus")
            ours = time.perf_counter() - before
            rows = all_rows(client, generation.collection)
            verify(len(rows) == count, "the collection does not hold the memories")
            theirs = min(_peer(bench, client, generation.collection, rows, size) for size in PEER_BATCHES)
        finally:
            client.drop_collection(generation.collection)
            client.close()
            await projection.close()
    return ours, theirs


def plain_client(bench: Bench) -> MilvusClient:
    settings = bench.stack.milvus_settings()
    assert settings.token is not None
    return MilvusClient(uri=settings.uri or "", token=settings.token.get_secret_value())


def strong_count(client: MilvusClient, collection: str) -> int:
    found = client.query(collection, filter="", output_fields=["count(*)"], consistency_level="Strong")
    return int(found[0]["count(*)"])


def all_rows(client: MilvusClient, collection: str) -> list[dict[str, Any]]:
    """Every row of a collection with every field."""
    iterator = client.query_iterator(
        collection, batch_size=1000, filter="memory_id >= 0", output_fields=["*"], consistency_level="Strong"
    )
    rows: list[dict[str, Any]] = []
    while page := iterator.next():
        rows += [dict(row) for row in page]
    iterator.close()
    return rows


def _peer(bench: Bench, client: MilvusClient, like: str, rows: list[dict[str, Any]], size: int) -> float:
    name = f"{like}_peer"
    copy_collection(client, like, name)
    try:
        started = time.perf_counter()
        for start in range(0, len(rows), size):
            client.upsert(name, rows[start : start + size])
        verify(strong_count(client, name) == len(rows), "rows are missing in the peer's collection")
        took = time.perf_counter() - started
    finally:
        client.drop_collection(name)
    bench.say(f"pymilvus, {size} rows a call: {len(rows) / took:,.0f} rows/s")
    return took


def copy_collection(client: MilvusClient, like: str, name: str) -> None:
    """A collection with the same fields and index, loaded and empty."""
    described = client.describe_collection(like)
    schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
    for one in described["fields"]:
        schema.add_field(one["name"], one["type"], is_primary=bool(one.get("is_primary")), **one.get("params", {}))
    client.create_collection(name, schema=schema)
    parameters = MilvusClient.prepare_index_params()
    parameters.add_index("vector", index_name="vector", **INDEX)
    client.create_index(name, parameters)
    client.load_collection(name)
