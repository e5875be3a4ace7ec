"""Draining the outbox with a no-op target, beside PgQueuer at its better batch size.

One process each, on the same server with `synchronous_commit=on`, alternating; the queues hold the same number of
entries before, and the database is asked after every drain whether all of them are done. The product does more per
event: it reads the memory's truth and keeps the event as history, where PgQueuer deletes the job.
"""

from __future__ import annotations

import asyncio
import sys

import asyncpg

from bench.drainer import ENTRYPOINT
from bench.frame import Bench, Result, median, verify
from bench.inputs import text_hash, texts
from memplane.outbox.enqueue import Change, enqueue
from memplane.outbox.events import Target
from memplane.schema.database import Database

NAME = "drain"
TITLE = "outbox drain, no-op target"
BOUND = 1.2
BATCHES = (100, 1000)
CHUNK = 1000
USER = "drainer"


async def run(bench: Bench) -> Result:
    events, rounds = bench.size(20_000, 2_000), bench.size(3, 1)
    rates: dict[tuple[str, int], list[float]] = {}
    for _ in range(rounds):
        for batch in BATCHES:
            for side, drained in (("memplane", _memplane), ("pgqueuer", _pgqueuer)):
                rates.setdefault((side, batch), []).append(events / await drained(bench, batch, events))
    middle = {key: median(values) for key, values in rates.items()}
    bench.say(", ".join(f"{side} in batches of {batch}: {rate:,.0f}/s" for (side, batch), rate in middle.items()))
    best = {side: max(rate for (name, _), rate in middle.items() if name == side) for side in ("memplane", "pgqueuer")}
    return Result(TITLE, best["memplane"], "events/s", True, best["pgqueuer"], "PgQueuer", BOUND)


async def _memplane(bench: Bench, batch: int, events: int) -> float:
    async with bench.database() as database:
        await _durable(database)
        for start in range(0, events, CHUNK):
            await _write(database, start, min(CHUNK, events - start))
        seconds = await _drain("memplane", database, batch, events)
        async with database.acquire() as connection:
            left = await connection.fetchval(
                database.sql("SELECT count(*) FROM {schema}.memory_outbox WHERE status <> 'processed' OR shadow")
            )
            total = await connection.fetchval(database.sql("SELECT count(*) FROM {schema}.memory_outbox"))
        verify(left == 0 and total == events, f"{left} events of {total} are not processed")
        return seconds


async def _write(database: Database, start: int, count: int) -> None:
    """Memories and their events, in one transaction like WRITE's."""
    contents = list(texts(count, seed=start + 1))
    async with database.transaction() as connection:
        rows = await connection.fetch(
            database.sql(
                "INSERT INTO {schema}.long_term_memory (tenant, user_id, content, content_hash, text_hash) "
                "SELECT 'bench', $3, content, encode(digest, 'hex'), digest "
                "FROM unnest($1::text[], $2::bytea[]) AS u (content, digest) RETURNING id, content_hash"
            ),
            contents,
            [text_hash(text) for text in contents],
            USER,
        )
        changes = [Change(row["id"], "bench", USER, 1, row["content_hash"], "upsert", fresh=True) for row in rows]
        await enqueue(connection, database, changes, targets={Target.MILVUS})


async def _pgqueuer(bench: Bench, batch: int, events: int) -> float:
    from pgqueuer.db import AsyncpgDriver
    from pgqueuer.queries import Queries

    async with bench.database(migrated=False) as database:
        await _durable(database)
        connection = await asyncpg.connect(_dsn(database))
        try:
            queries = Queries(AsyncpgDriver(connection))
            await queries.install()
            payload = (
                b'{"memory_id": 1234567, "version": 1, "content_hash": "' + b"a" * 64 + b'", "operation": "upsert"}'
            )
            for start in range(0, events, CHUNK):
                count = min(CHUNK, events - start)
                await queries.enqueue([ENTRYPOINT] * count, [payload] * count, [0] * count)
            seconds = await _drain("pgqueuer", database, batch, events)
            left = await connection.fetchval("SELECT count(*) FROM pgqueuer")
            logged = await connection.fetchval("SELECT count(*) FROM pgqueuer_log WHERE status = 'successful'")
            folded = await connection.fetchval(
                "SELECT COALESCE(sum(count), 0) FROM pgqueuer_statistics WHERE status = 'successful'"
            )
            verify(left == 0, f"{left} jobs are left")
            verify(
                max(logged, folded) >= events or logged + folded >= events, f"only {logged} + {folded} jobs succeeded"
            )
            return seconds
        finally:
            await connection.close()


async def _durable(database: Database) -> None:
    async with database.acquire() as connection:
        verify(await connection.fetchval("SHOW synchronous_commit") == "on", "synchronous_commit is not on")


def _dsn(database: Database) -> str:
    assert database.settings.dsn is not None
    return database.settings.dsn.get_secret_value()


async def _drain(side: str, database: Database, batch: int, events: int) -> float:
    """The seconds that a process of its own has taken."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.drainer", side, _dsn(database), str(batch), str(events),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    output, _ = await process.communicate()
    verify(process.returncode == 0, f"the drain of {side} failed")
    return float(output)
