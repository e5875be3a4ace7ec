"""memplane and another memory store, block by block: put, get and search with the same texts and embeddings."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.frame import Bench, Result, median, percentile, verify
from bench.inputs import drafts, vectors
from bench.load import PROVIDER, SCOPE, drain, populate, stored_embeddings, stored_vectors
from bench.peers.process import Peer
from bench.rows.milvus_projection import plain_client
from memplane.nodes.memory import Memory, create_memory
from memplane.outbox.events import Target
from memplane.plugins.postgres.backend import PostgresBackend
from memplane.plugins.registry import Resources, create_search
from memplane.projections.clients import open_milvus
from memplane.projections.milvus import MilvusProjection
from memplane.settings import Settings

BATCH = 100
BLOCKS = 10
LIMIT = 10


@dataclass(frozen=True, slots=True)
class Sizes:
    """`searched` memories are there before the searches; the others are put while the clock runs."""

    searched: int
    singles: int
    batches: int
    gets: int
    searches: int


class Inputs:
    """Texts and vectors by number: first those that are searched, then those that are put, then the questions."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        put = sizes.singles + sizes.batches * BATCH
        self.put_drafts = list(drafts(put, seed=2))
        self.questions = vectors(sizes.searches, seed=99)
        self.texts = [
            *(str(draft["content"]) for draft in islice(drafts(sizes.searched), sizes.searched)),
            *(str(draft["content"]) for draft in self.put_drafts),
            *(f"question {number}" for number in range(sizes.searches)),
        ]
        parts = [stored_vectors(sizes.searched), vectors(put, seed=8), self.questions]
        self.vectors: npt.NDArray[np.float32] = np.concatenate(parts)

    @property
    def first_put(self) -> int:
        return self.sizes.searched

    @property
    def first_question(self) -> int:
        return self.sizes.searched + len(self.put_drafts)


BOUND = 1.0
"""Not slower than the peer."""


@dataclass(frozen=True, slots=True)
class Puts:
    """The peer's calls that put: one text, and many at once where it has such a call. `bound`: of the ratio, if any."""

    one: str
    many: str | None
    bound: float | None


async def put_and_get(bench: Bench, name: str, peer: Peer, inputs: Inputs, *, puts: Mapping[str, Puts]) -> list[Result]:
    """Puts by each of the peer's ways, one at a time and in batches; then gets by id. All alternate in blocks."""
    async with bench.database() as database:
        store = PostgresBackend(database, targets=frozenset(Target))
        await store.start()
        memory = create_memory(store=store.scoped(SCOPE))
        ids: list[str] = []
        sizes = inputs.sizes
        singles = [[int(place)] for place in range(sizes.singles)]
        results = await _puts("put, one at a time", memory, peer, inputs, ids, singles, puts)
        if sizes.batches:
            starts = range(sizes.singles, len(inputs.put_drafts), BATCH)
            many = [list(range(start, start + BATCH)) for start in starts]
            results += await _puts(f"put, {BATCH} a batch", memory, peer, inputs, ids, many, puts)
        results.append(await _gets(memory, peer, inputs, ids, name))
        await store.close()
    return results


async def _puts(  # noqa: PLR0917 - one row's parts
    title: str,
    memory: Memory,
    peer: Peer,
    inputs: Inputs,
    ids: list[str],
    groups: Sequence[Sequence[int]],
    puts: Mapping[str, Puts],
) -> list[Result]:
    """Put groups of places among the inputs to be put; appends the ids that memplane gave them."""
    ours, theirs = 0.0, dict.fromkeys(puts, 0.0)
    for start in range(0, len(groups), BLOCKS):
        block = groups[start : start + BLOCKS]
        for places in block:
            took, items = await _timed(memory.write({"memories": [inputs.put_drafts[place] for place in places]}))
            ids += [item["id"] for item in items]
            ours += took
        for name, way in puts.items():
            numbers = [[inputs.first_put + place for place in places] for places in block]
            many = len(block[0]) > 1
            call, arguments = (way.many, [[one] for one in numbers]) if many else (way.one, numbers)
            assert call is not None
            seconds, _ = await peer.call(call, arguments)
            theirs[name] += sum(seconds)
    count = sum(map(len, groups))
    return [
        Result(title, count / ours, "memories/s", True, count / theirs[name], name, way.bound)
        for name, way in puts.items()
    ]


async def _gets(memory: Memory, peer: Peer, inputs: Inputs, ids: list[str], name: str) -> Result:
    generator = random.Random(3)
    ours: list[float] = []
    theirs: list[float] = []
    for block in range(BLOCKS + 1):
        places = generator.choices(range(len(ids)), k=inputs.sizes.gets // BLOCKS)
        times = []
        for place in places:
            took, items = await _timed(memory.get({"ids": [ids[place]]}))
            verify(items[0]["content"] == inputs.put_drafts[place]["content"], "GET gave another memory")
            times.append(took)
        seconds, answers = await peer.call("get", [[inputs.first_put + place] for place in places])
        wanted = [inputs.texts[inputs.first_put + place] for place in places]
        verify(answers == wanted, f"{name} gave other memories")
        if block:  # the first one warms both up
            ours += times
            theirs += seconds
    return Result("get by id, p50", 1000 * median(ours), "ms", False, 1000 * median(theirs), name, BOUND)


async def search(bench: Bench, name: str, peer: Peer, inputs: Inputs) -> Result:
    """Vector searches, the question's embedding given, over the memories that both hold."""
    async with bench.database() as database:
        await populate(database, inputs.sizes.searched, [Target.MILVUS])
        target = MilvusProjection(
            database, await open_milvus(bench.stack.milvus_settings()), stored_embeddings(database)
        )
        generation = await target.generation()
        client = plain_client(bench)
        try:
            await drain(bench, database, target)
            client.flush(generation.collection)
            async with _searcher(bench, database) as memory:
                return await _searches(bench, memory, peer, inputs, name)
        finally:
            client.drop_collection(generation.collection)
            client.close()


@asynccontextmanager
async def _searcher(bench: Bench, database: Any) -> AsyncIterator[Memory]:
    milvus = await open_milvus(bench.stack.milvus_settings())
    store = PostgresBackend(database, targets=frozenset({Target.MILVUS}))
    await store.start()
    resources = Resources(settings=Settings(), database=database, embedding=PROVIDER, milvus=milvus, store=store)
    found = create_search("hybrid", {}, resources)
    await found.start()
    try:
        yield create_memory(store=store.scoped(SCOPE), search=found.scoped(SCOPE))
    finally:
        await found.close()
        await store.close()
        await milvus.close()


async def _searches(bench: Bench, memory: Memory, peer: Peer, inputs: Inputs, name: str) -> Result:
    ours: list[float] = []
    theirs: list[float] = []
    places = {text: place for place, text in enumerate(inputs.texts)}
    common = 0
    for block, numbers in enumerate(np.array_split(range(inputs.sizes.searches), BLOCKS)):
        found = []
        for number in numbers:
            query = {"vector": [float(value) for value in inputs.questions[number]]}
            took, hits = await _timed(memory.search({"query": query, "strategy": "vector", "limit": LIMIT}))
            verify(len(hits) == LIMIT, f"SEARCH gave {len(hits)} of {LIMIT} hits")
            found.append({places[hit["memory"]["content"]] for hit in hits})
            if block:  # the first one warms both up
                ours.append(took)
        seconds, answers = await peer.call(
            "search", [[inputs.first_question + int(number), LIMIT] for number in numbers]
        )
        verify(all(len(answer) == LIMIT for answer in answers), f"{name} gave fewer hits")
        common += sum(len(mine & set(answer)) for mine, answer in zip(found, answers, strict=True))
        theirs += seconds if block else []
    share = common / (LIMIT * inputs.sizes.searches)
    bench.say(
        f"search: p99 {1000 * percentile(ours, 0.99):.2f} ms, {name} {1000 * percentile(theirs, 0.99):.2f} ms;"
        f" {share:.0%} of the hits are the same"
    )
    title = f"vector search p50, {inputs.sizes.searched:,} memories"
    return Result(title, 1000 * median(ours), "ms", False, 1000 * median(theirs), name)


async def _timed(call: Any) -> tuple[float, Any]:
    started = time.perf_counter()
    result = await call
    took = time.perf_counter() - started
    return took, result.unwrap()
