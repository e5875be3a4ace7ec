"""WRITE in batches of 100, beside plain asyncpg inserting the identical memory and outbox rows in one transaction.

The product goes through the SDK (`create_memory(...).write`). The peer gets the very rows that the product stored,
ready made, and inserts them, one transaction per batch, into another database with the same tables and indexes: once
with `executemany`, once with one multi-row INSERT per table, and the faster way counts. All use one connection and one
process; batches alternate.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from bench.frame import TENANT, Bench, Result, verify
from bench.inputs import drafts
from memplane.contracts import Scope
from memplane.nodes.memory import create_memory
from memplane.outbox.events import Target
from memplane.plugins.postgres.backend import PostgresBackend
from memplane.schema.database import Connection, Database

NAME = "write"
TITLE = "WRITE of 100 memories a batch"
BATCH = 100
TABLES = ("long_term_memory", "memory_outbox")
WARM_UP = 5

Columns = dict[str, list[str]]
Rows = dict[str, list[tuple[Any, ...]]]
Insert = Callable[[Connection, str, list[tuple[Any, ...]]], Awaitable[None]]


async def run(bench: Bench) -> Result:
    batches = bench.size(150, 10)
    async with bench.database() as ours, bench.database() as first, bench.database() as second:
        peers = {"asyncpg executemany": (first, _execute_many), "asyncpg multi-row INSERT": (second, _insert_rows)}
        backend = PostgresBackend(ours, targets=frozenset(Target))
        await backend.start()
        memory = create_memory(store=backend.scoped(Scope(TENANT, "writer")))
        inputs = list(drafts(BATCH * (batches + WARM_UP)))
        columns = {table: await _columns(ours, table) for table in TABLES}
        took = dict.fromkeys(["memplane", *peers], 0.0)
        last_id = 0
        for number in range(batches + WARM_UP):
            started = time.perf_counter()
            items = (await memory.write({"memories": inputs[number * BATCH : (number + 1) * BATCH]})).unwrap()
            times = {"memplane": time.perf_counter() - started}
            rows = {table: await _rows(ours, table, columns[table], last_id) for table in TABLES}
            last_id = max(int(item["id"]) for item in items)
            for name, (database, insert) in peers.items():
                times[name] = await _timed(database, insert, columns, rows)
            if number >= WARM_UP:
                took = {name: seconds + times[name] for name, seconds in took.items()}
        for database, _ in peers.values():
            await _compare(ours, database, len(inputs))
        await backend.close()
    bench.say(", ".join(f"{name} {1000 * seconds / batches:.1f} ms a batch" for name, seconds in took.items()))
    product = took.pop("memplane")
    best = min(took, key=lambda name: took[name])
    count = batches * BATCH
    return Result(TITLE, count / product, "memories/s", True, count / took[best], best, 0.7)


async def _columns(database: Database, table: str) -> list[str]:
    """All columns that an INSERT gives: no generated ones; the transaction's own id comes by default."""
    async with database.acquire() as connection:
        rows = await connection.fetch(
            "SELECT attname FROM pg_attribute WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped"
            " AND attgenerated = '' AND attname <> 'changed_xid' ORDER BY attnum",
            f"{database.schema}.{table}",
        )
    return [row["attname"] for row in rows]


async def _rows(database: Database, table: str, columns: Sequence[str], above: int) -> list[tuple[Any, ...]]:
    key = "id" if table == "long_term_memory" else "aggregate_id"
    async with database.acquire() as connection:
        rows = await connection.fetch(
            f"SELECT {', '.join(columns)} FROM {database.schema}.{table} WHERE {key} > $1 ORDER BY id", above
        )
    return [tuple(row) for row in rows]


async def _timed(database: Database, insert: Insert, columns: Columns, rows: Rows) -> float:
    async with database.acquire() as connection:
        started = time.perf_counter()
        async with connection.transaction():
            for table in TABLES:
                head = f"INSERT INTO {database.schema}.{table} ({', '.join(columns[table])}) VALUES"
                await insert(connection, head, rows[table])
        return time.perf_counter() - started


async def _execute_many(connection: Connection, head: str, rows: list[tuple[Any, ...]]) -> None:
    await connection.executemany(f"{head} {_places(1, len(rows[0]))}", rows)


async def _insert_rows(connection: Connection, head: str, rows: list[tuple[Any, ...]]) -> None:
    width = len(rows[0])
    places = ", ".join(_places(1 + number * width, width) for number in range(len(rows)))
    await connection.execute(f"{head} {places}", *(value for row in rows for value in row))


def _places(first: int, width: int) -> str:
    return f"({', '.join(f'${number}' for number in range(first, first + width))})"


async def _compare(ours: Database, theirs: Database, memories: int) -> None:
    async with ours.acquire() as left, theirs.acquire() as right:
        for table in TABLES:
            count = f"SELECT count(*) FROM {ours.schema}.{table}"
            a, b = await left.fetchval(count), await right.fetchval(count)
            verify(a == b, f"{table}: {a} rows, the peer has {b}")
        digest = (
            "SELECT count(*), min(content_hash), max(content_hash), sum(length(content)) FROM {schema}.long_term_memory"
        )
        a, b = await left.fetchrow(ours.sql(digest)), await right.fetchrow(theirs.sql(digest))
        verify(a == b and a is not None and a[0] == memories, "the two databases do not hold the same memories")
