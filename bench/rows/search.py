"""SEARCH p50 over 100,000 memories through the SDK, vector given, beside plain pymilvus searching the same collection.

Two rows: the strategy `vector`, and `hybrid` with keyword and graph on. The peer asks for the same number of hits in
the same scope; product and peer take turns, query by query. Afterwards the
hits of both are held against the exact nearest neighbours: the product must find as many as the peer.
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt
from pymilvus import MilvusClient

from bench.frame import Bench, Result, median, percentile, verify
from bench.inputs import question, vectors
from bench.load import PROVIDER, SCOPE, drain, populate, stored_embeddings, stored_vectors
from bench.rows.milvus_projection import plain_client, strong_count
from bench.rows.neo4j_projection import plain_driver, remove
from memplane.nodes.memory import Memory, create_memory
from memplane.outbox.events import Target
from memplane.plugins.postgres.backend import PostgresBackend
from memplane.plugins.registry import Resources, create_search
from memplane.projections.clients import open_milvus, open_neo4j
from memplane.projections.generation import Generation
from memplane.projections.milvus import MilvusProjection
from memplane.projections.milvus_search import scope_filter
from memplane.projections.neo4j import Neo4jProjection
from memplane.schema.database import Database
from memplane.schema.identity import read_identity
from memplane.settings import Settings

NAME = "search"
TITLE = "SEARCH p50"
LIMIT = 10
RECALL = 0.9
"""Share of the peer's hits that the product must have found, too; both searches are approximate."""
SLACK = 0.02
"""How much less of the exact neighbours than the peer the product may find."""
BOUNDS = {"vector": 1.5, "hybrid": 2.5}


@dataclass(frozen=True, slots=True)
class _Corpus:
    """The memories, in the order in which their vectors were made, and where Milvus has them."""

    ids: Sequence[int]
    generation: Generation


async def run(bench: Bench) -> list[Result]:
    count = bench.size(100_000, 3_000)
    async with bench.database() as database, plain_driver(bench) as driver:
        ids = await populate(database, count, [Target.MILVUS, Target.NEO4J], relate=True)
        backend = str(await read_identity(database))
        client = plain_client(bench)
        # A worker closes its target when it ends, so the searches below have connections of their own.
        projection = MilvusProjection(
            database, await open_milvus(bench.stack.milvus_settings()), stored_embeddings(database)
        )
        graph = Neo4jProjection(database, await open_neo4j(bench.stack.neo4j_settings()))
        generation = await projection.generation()
        try:
            await drain(bench, database, projection)
            await drain(bench, database, graph)
            verify(strong_count(client, generation.collection) == count, "rows are missing in Milvus")
            _index(client, generation.collection)
            async with _resources(bench, database) as resources:
                return [await _measure(bench, resources, client, _Corpus(ids, generation), name) for name in BOUNDS]
        finally:
            client.drop_collection(generation.collection)
            client.close()
            await remove(driver, "Memory", backend)


@asynccontextmanager
async def _resources(bench: Bench, database: Database) -> AsyncIterator[Resources]:
    milvus = await open_milvus(bench.stack.milvus_settings())
    neo4j = await open_neo4j(bench.stack.neo4j_settings())
    try:
        yield Resources(settings=Settings(), database=database, embedding=PROVIDER, milvus=milvus, neo4j=neo4j)
    finally:
        await milvus.close()
        await neo4j.close()


def _index(client: MilvusClient, collection: str) -> None:
    """Seal what is growing and wait for its index, so that neither side pays for the load."""
    client.flush(collection)
    end = time.monotonic() + 300
    while time.monotonic() < end:
        state = client.describe_index(collection, "vector")
        if state.get("pending_index_rows", 0) == 0 and state.get("state") == "Finished":
            client.refresh_load(collection)
            return
        time.sleep(0.5)


async def _measure(bench: Bench, resources: Resources, client: MilvusClient, corpus: _Corpus, strategy: str) -> Result:
    assert resources.database is not None
    store = PostgresBackend(resources.database, targets=frozenset({Target.MILVUS, Target.NEO4J}))
    await store.start()
    search = create_search("hybrid", {}, replace(resources, store=store))
    await search.start()
    memory = create_memory(store=store.scoped(SCOPE), search=search.scoped(SCOPE))
    queries = vectors(bench.size(400, 30) + 20, seed=99)
    generator = random.Random(5)
    ours: list[float] = []
    theirs: list[float] = []
    found: list[tuple[set[int], set[int]]] = []
    for number, query in enumerate(queries):
        values = [float(value) for value in query]
        hits, took = await _product(memory, strategy, values, question(generator))
        peer_hits, peer_took = _peer(client, corpus.generation, values)
        verify(len(hits) == LIMIT, f"SEARCH gave {len(hits)} of {LIMIT} hits")
        if number >= 20:
            ours.append(took)
            theirs.append(peer_took)
            found.append((hits, peer_hits))
    if strategy == "vector":
        _verify_recall(bench, corpus.ids, queries[20:], found)
    await search.close()
    await store.close()
    bench.say(
        f"{strategy}: p50 {1000 * median(ours):.2f} ms, p99 {1000 * percentile(ours, 0.99):.2f} ms; "
        f"peer p50 {1000 * median(theirs):.2f} ms, p99 {1000 * percentile(theirs, 0.99):.2f} ms"
    )
    title = f"{strategy} SEARCH p50, {bench.size(100_000, 3_000):,} memories"
    return Result(title, 1000 * median(ours), "ms", False, 1000 * median(theirs), "pymilvus search", BOUNDS[strategy])


def _verify_recall(
    bench: Bench, ids: Sequence[int], queries: npt.NDArray[np.float32], found: Sequence[tuple[set[int], set[int]]]
) -> None:
    stored = stored_vectors(len(ids))
    ours = theirs = shared = 0
    for query, (hits, peer_hits) in zip(queries, found, strict=True):
        exact = {ids[place] for place in np.argpartition(stored @ query, -LIMIT)[-LIMIT:]}
        ours += len(hits & exact)
        theirs += len(peer_hits & exact)
        shared += len(hits & peer_hits)
    whole = LIMIT * len(found)
    told = f"of the exact neighbours the product found {ours / whole:.2f}, the peer {theirs / whole:.2f}"
    bench.say(told)
    verify(ours / whole >= theirs / whole - SLACK, told)
    verify(shared / whole >= RECALL, f"only {shared / whole:.2f} of the peer's hits")


async def _product(memory: Memory, strategy: str, vector: list[float], text: str) -> tuple[set[int], float]:
    query: dict[str, Any] = {"vector": vector} if strategy == "vector" else {"vector": vector, "text": text}
    started = time.perf_counter()
    result = await memory.search({"query": query, "strategy": strategy, "limit": LIMIT})
    took = time.perf_counter() - started
    return {int(hit["memory"]["id"]) for hit in result.unwrap()}, took


def _peer(client: MilvusClient, generation: Generation, vector: list[float]) -> tuple[set[int], float]:
    condition = scope_filter(generation.backend, SCOPE, datetime.now(UTC))
    started = time.perf_counter()
    answer = client.search(
        generation.collection,
        data=[vector],
        filter=condition,
        limit=LIMIT,
        anns_field="vector",
        output_fields=["version"],
        search_params={"metric_type": "COSINE", "params": {"ef": 64}},
        consistency_level="Bounded",
    )
    took = time.perf_counter() - started
    return {int(hit["id"]) for hit in answer[0]}, took
