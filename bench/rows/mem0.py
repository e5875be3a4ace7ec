"""Put, get and search beside mem0 without inference, on pgvector in the same PostgreSQL and on its default store.

mem0 embeds and indexes within the call; memplane's own index follows within the time of the row `http-write`. The
default store is Qdrant in a folder, inside the peer's own process: it keeps no index but compares with every memory,
and a get is a look-up in the process' memory, which no store of another process can be faster than.
"""

from __future__ import annotations

from bench.frame import Bench, Result
from bench.peers.process import Missing, Peer, has_pgvector, peer
from bench.peers.side_by_side import BOUND, Inputs, Puts, Sizes, put_and_get, search

NAME = "mem0"
TITLE = "put, get and search beside mem0 (infer off)"


async def run(bench: Bench) -> list[Result]:
    inputs = Inputs(
        Sizes(
            searched=bench.size(2_000, 300),
            singles=bench.size(500, 50),
            batches=0,  # it has none
            gets=bench.size(2_000, 200),
            searches=bench.size(200, 40),
        )
    )
    results: list[Result] = []
    async with bench.database(migrated=False) as database:
        stores = {"mem0 on Qdrant in its process": []}
        if await has_pgvector(database):
            stores = {"mem0 on pgvector": [database.dsn()], **stores}
        try:
            for name, arguments in stores.items():
                async with peer("mem0_store", inputs.texts, inputs.vectors, *arguments) as other:
                    results += await _beside(bench, name, other, inputs)
        except Missing as missing:
            bench.say(f"skipped: {missing}")
    return results


async def _beside(bench: Bench, name: str, other: Peer, inputs: Inputs) -> list[Result]:
    results = await put_and_get(bench, name, other, inputs, puts={name: Puts("put", None, BOUND)})
    # Both sides search the same memories: what was put goes first.
    await other.call("forget", [[]])
    await other.call("put", [[number] for number in range(inputs.sizes.searched)])
    return [*results, await search(bench, name, other, inputs)]
