"""Single HTTP writes, 200 a second for a minute, all targets on: the time from commit to projected.

The load is open: requests leave on schedule whether or not earlier ones have been answered. `memplane serve` and one
`memplane worker` per target run as processes of their own, with their defaults. The time is taken from the outbox:
`processed_at - created_at` of every event, by PostgreSQL's clock; `created_at` is the begin of the transaction, so the
figures are a little too high rather than too low.
"""

from __future__ import annotations

import asyncio
import json
import time

from bench.frame import Bench, Result, percentile, verify
from bench.inputs import drafts
from bench.load import unfinished
from bench.processes import deployment
from bench.rows.milvus_projection import plain_client, strong_count
from bench.rows.neo4j_projection import plain_driver, remove
from bench.wire import Client, post
from memplane.outbox.events import Target
from memplane.projections.generation import read_generation
from memplane.schema.database import Database
from memplane.schema.identity import read_identity

NAME = "http-write"
TITLE = "single HTTP writes, commit → projected, p99"
RATE = 200
CONNECTIONS = 32
BOUND_SECONDS = 5.0


async def run(bench: Bench) -> list[Result]:
    seconds = bench.size(60, 5)
    async with bench.database() as database, plain_driver(bench) as driver:
        backend = str(await read_identity(database))
        try:
            async with deployment(bench, database, projections=True) as product:
                await product.start("serve")
                await product.start("worker", "milvus")
                product.environment["MEMPLANE_WORKER__PORT"] = "0"
                await product.start("worker", "neo4j")
                await product.serving()
                latencies = await _load(product.port, product.headers, RATE * seconds)
                await _settle(database)
                results = await _results(bench, database, RATE * seconds, latencies)
            await _verify_targets(bench, database, driver, backend, RATE * seconds)
        finally:
            await remove(driver, "Memory", backend)
            generation = await read_generation(database, Target.MILVUS)
            if generation is not None:
                client = plain_client(bench)
                client.drop_collection(generation.collection)
                client.close()
    return results


async def _load(port: int, headers: dict[str, str], count: int) -> list[float]:
    """Send `count` writes at `RATE`; returns how long each took from its scheduled time."""
    requests = [post("/v1/nodes/MEMORY.WRITE", {"memories": [draft]}, headers) for draft in drafts(count, seed=7)]
    idle: asyncio.Queue[Client] = asyncio.Queue()
    clients = [await Client.connect(port) for _ in range(CONNECTIONS)]
    for client in clients:
        idle.put_nowait(client)
    latencies: list[float] = []
    begin = time.perf_counter() + 0.5

    async def one(number: int, request: bytes) -> None:
        due = begin + number / RATE
        await asyncio.sleep(due - time.perf_counter())
        client = await idle.get()
        status, body = await client.send(request)
        latencies.append(time.perf_counter() - due)
        idle.put_nowait(client)
        verify(status == 200 and json.loads(body)["status"] == "success", f"a write was answered {status}: {body!r}")

    await asyncio.gather(*(one(number, request) for number, request in enumerate(requests)))
    for client in clients:
        client.close()
    return latencies


async def _settle(database: Database) -> None:
    async with asyncio.timeout(120):
        for target in Target:
            while await unfinished(database, target) > 0:  # noqa: ASYNC110 - the event is in another process
                await asyncio.sleep(0.1)


async def _results(bench: Bench, database: Database, count: int, latencies: list[float]) -> list[Result]:
    async with database.acquire() as connection:
        rows = await connection.fetch(
            database.sql(
                "SELECT target, extract(epoch FROM processed_at - created_at)::float8 AS seconds"
                " FROM {schema}.memory_outbox WHERE status = 'processed' AND superseded_by IS NULL"
            )
        )
    by_target: dict[str, list[float]] = {target.value: [] for target in Target}
    for row in rows:
        by_target[row["target"]].append(row["seconds"])
    results = []
    for target, times in by_target.items():
        verify(len(times) == count, f"{target}: {len(times)} of {count} events were processed")
        note = f"p50 {percentile(times, 0.5):.3f} s, max {max(times):.3f} s"
        bench.say(f"{target}: p99 {percentile(times, 0.99):.3f} s, {note}")
        results.append(
            Result(f"{TITLE} ({target})", percentile(times, 0.99), "s", False, bound=BOUND_SECONDS, note=note)
        )
    answered = f"p50 {1000 * percentile(latencies, 0.5):.1f} ms, p99 {1000 * percentile(latencies, 0.99):.1f} ms"
    bench.say(f"writes were answered after {answered} (from their scheduled time)")
    return results


async def _verify_targets(bench: Bench, database: Database, driver: object, backend: str, count: int) -> None:
    generation = await read_generation(database, Target.MILVUS)
    verify(generation is not None, "there is no Milvus generation")
    assert generation is not None
    client = plain_client(bench)
    verify(strong_count(client, generation.collection) == count, "rows are missing in Milvus")
    client.close()
    records, _, _ = await driver.execute_query(  # type: ignore[attr-defined]
        "MATCH (m:Memory {backend: $backend}) RETURN count(m) AS n", backend=backend
    )
    verify(records[0]["n"] == count, f"Neo4j holds {records[0]['n']} of {count} nodes")
