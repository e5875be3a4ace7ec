"""Put, get and search beside LangGraph's PostgresStore on the same PostgreSQL.

A put makes the memory searchable on both sides: the store extends its index on pgvector, the embedding given; memplane
writes search tokens and an event per projection, and searches add what is not projected yet. A store without vectors,
which writes one row per put and can only be filtered, is shown beside them. Without pgvector it is all there is.
"""

from __future__ import annotations

from bench.frame import Bench, Result
from bench.peers.process import Missing, Peer, has_pgvector, peer
from bench.peers.side_by_side import BATCH, BOUND, Inputs, Puts, Sizes, put_and_get, search

NAME = "langgraph"
TITLE = "put, get and search beside LangGraph's PostgresStore"
PEER = "LangGraph PostgresStore"


async def run(bench: Bench) -> list[Result]:
    inputs = Inputs(
        Sizes(
            searched=bench.size(10_000, 1_000),
            singles=bench.size(500, 50),
            batches=bench.size(50, 3),
            gets=bench.size(2_000, 200),
            searches=bench.size(400, 40),
        )
    )
    async with bench.database(migrated=False) as plain, bench.database(migrated=False) as indexed:
        vectors_too = await has_pgvector(indexed)
        if not vectors_too:
            bench.say("this PostgreSQL has no pgvector, so there is no search of LangGraph's to compare with")
        try:
            dsn = indexed.dsn() if vectors_too else ""
            async with peer("langgraph_store", inputs.texts, inputs.vectors, plain.dsn(), dsn) as other:
                return await _beside(bench, other, inputs, vectors_too=vectors_too)
        except Missing as missing:
            bench.say(f"skipped: {missing}")
            return []


async def _beside(bench: Bench, other: Peer, inputs: Inputs, *, vectors_too: bool) -> list[Result]:
    puts = {f"{PEER}, no vectors": Puts("put_plain", "put_all_plain", None)}
    if vectors_too:
        puts = {PEER: Puts("put", "put_all", BOUND), **puts}
    results = await put_and_get(bench, PEER, other, inputs, puts=puts)
    if vectors_too:
        for start in range(0, inputs.sizes.searched, BATCH):
            await other.call("put_all", [[list(range(start, start + BATCH))]])
        await other.call("forget", [[list(range(inputs.first_put, inputs.first_question))]])
        results.append(await search(bench, PEER, other, inputs))
    return results
