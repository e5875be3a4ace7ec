"""Neo4j projection, nodes a second, beside plain `UNWIND … MERGE` of the same nodes.

The product is one outbox worker with its defaults. The peer gets the very properties that the product has projected and
merges them under the same kind of uniqueness constraint, in the batch size that suits it best. Medians of three rounds.
"""

from __future__ import annotations

import time
from typing import Any

from neo4j import AsyncDriver, AsyncGraphDatabase

from bench.frame import Bench, Result, median, verify
from bench.load import drain, populate
from memplane.outbox.events import Target
from memplane.projections.clients import open_neo4j
from memplane.projections.neo4j import Neo4jProjection
from memplane.schema.identity import read_identity

NAME = "neo4j"
TITLE = "Neo4j projection"
PEER_BATCHES = (500, 1000, 2000)
PEER_LABEL = "BenchPeer"


ROUNDS = 3
"""The servers compile what they run often: whoever goes first in a first round pays for it."""


async def run(bench: Bench) -> Result:
    count = bench.size(20_000, 2_000)
    rounds = [await _round(bench, count) for _ in range(bench.size(ROUNDS, 1))]
    ours, theirs = (median(seconds) for seconds in zip(*rounds, strict=True))
    return Result(TITLE, count / ours, "nodes/s", True, count / theirs, "UNWIND … MERGE", 0.7)


async def _round(bench: Bench, count: int) -> tuple[float, float]:
    """The seconds of the product, and of the peer in its best batch size."""
    async with bench.database() as database, plain_driver(bench) as driver:
        await populate(database, count, [Target.NEO4J])
        backend = str(await read_identity(database))
        projection = Neo4jProjection(database, await open_neo4j(bench.stack.neo4j_settings()))
        try:
            ours = await drain(bench, database, projection)
            rows = await _nodes(driver, backend)
            verify(len(rows) == count, f"Neo4j holds {len(rows)} of {count} nodes")
            theirs = min([await _peer(bench, driver, rows, size) for size in PEER_BATCHES])
        finally:
            await remove(driver, "Memory", backend)
            await projection.close()
    return ours, theirs


def plain_driver(bench: Bench) -> AsyncDriver:
    settings = bench.stack.neo4j_settings()
    assert settings.password is not None
    return AsyncGraphDatabase.driver(settings.uri or "", auth=(settings.user, settings.password.get_secret_value()))


async def _nodes(driver: AsyncDriver, backend: str) -> list[dict[str, Any]]:
    records, _, _ = await driver.execute_query(
        "MATCH (m:Memory {backend: $backend}) RETURN properties(m) AS p", backend=backend
    )
    return [record["p"] for record in records]


async def _peer(bench: Bench, driver: AsyncDriver, rows: list[dict[str, Any]], size: int) -> float:
    await driver.execute_query(
        f"CREATE CONSTRAINT bench_peer IF NOT EXISTS FOR (m:{PEER_LABEL}) REQUIRE (m.backend, m.memory_id) IS UNIQUE"
    )
    statement = (
        f"UNWIND $rows AS row MERGE (m:{PEER_LABEL} {{backend: row.backend, memory_id: row.memory_id}}) SET m += row"
    )
    try:
        started = time.perf_counter()
        for start in range(0, len(rows), size):
            await driver.execute_query(statement, rows=rows[start : start + size])
        records, _, _ = await driver.execute_query(
            f"MATCH (m:{PEER_LABEL} {{backend: $backend}}) RETURN count(m) AS n", backend=rows[0]["backend"]
        )
        took = time.perf_counter() - started
        verify(records[0]["n"] == len(rows), "the peer's nodes are missing")
    finally:
        await remove(driver, PEER_LABEL, str(rows[0]["backend"]))
        await driver.execute_query("DROP CONSTRAINT bench_peer IF EXISTS")
    bench.say(f"UNWIND … MERGE, {size} nodes a call: {len(rows) / took:,.0f} nodes/s")
    return took


async def remove(driver: AsyncDriver, label: str, backend: str) -> None:
    """Remove one backend's nodes in transactions of bounded size."""
    async with driver.session() as session:
        result = await session.run(
            f"MATCH (m:{label} {{backend: $backend}}) CALL (m) {{ DETACH DELETE m }} IN TRANSACTIONS OF 5000 ROWS",
            backend=backend,
        )
        await result.consume()
