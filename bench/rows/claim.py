"""The latency of a claim with a million processed and a million pending events, beside a table that holds nothing else.

The two databases take turns. In the empty one only the events to be claimed exist, freshly inserted into a truncated
table, which is as good as it gets. What was claimed is completed before the next claim, outside the measured time.
"""

from __future__ import annotations

import time

from bench.frame import Bench, Result, median, percentile, verify
from memplane.outbox.claim import claim, complete
from memplane.outbox.events import Target
from memplane.schema.database import Database

NAME = "claim"
TITLE = "claim of 100 events"
BATCH = 100
BOUND = 2.0
TARGETS = (Target.MILVUS, Target.NEO4J)
"""One with a family of events, and one with two, whose claims take a second statement."""

_INSERT = """
INSERT INTO {schema}.memory_outbox
    (event_id, aggregate_id, user_id, tenant, aggregate_version, event_type, target, payload, status,
     available_at, processed_at, created_at)
SELECT gen_random_uuid(), i, 'user-' || i % 1000, 'bench', 1, 'memory.upsert', $1, '{"operation": "upsert"}', $2,
       now() - interval '1 hour' + i * interval '1 ms',
       CASE WHEN $2 = 'processed' THEN now() - interval '1 hour' + i * interval '1 ms' END, now() - interval '1 hour'
FROM generate_series($3::bigint, $4::bigint) AS i
"""


async def run(bench: Bench) -> list[Result]:
    count, rounds = bench.size(1_000_000, 20_000), bench.size(300, 20)
    results = []
    for target in TARGETS:
        async with bench.database() as full, bench.database() as empty:
            started = time.perf_counter()
            await _insert(full, target, "processed", 1, count)
            await _insert(full, target, "pending", count + 1, 2 * count)
            await _vacuum(full)
            bench.say(f"{target.value}: 2 × {count:,} events made in {time.perf_counter() - started:.0f} s")
            times: dict[str, list[float]] = {"full": [], "empty": []}
            for number in range(rounds):
                await _refill(empty, target, number)
                for name, database in (("empty", empty), ("full", full)):
                    times[name].append(await _claim(database, target))
            await _verify(full, target, count, rounds)
        results.append(_result(bench, target, times, count))
    return results


async def _insert(database: Database, target: Target, status: str, first: int, last: int) -> None:
    async with database.acquire() as connection:
        await connection.execute(database.sql(_INSERT), target.value, status, first, last, timeout=600)


async def _vacuum(database: Database) -> None:
    async with database.acquire() as connection:
        await connection.execute(database.sql("VACUUM (ANALYZE) {schema}.memory_outbox"), timeout=600)
        await connection.execute("CHECKPOINT")


async def _refill(database: Database, target: Target, number: int) -> None:
    async with database.acquire() as connection:
        await connection.execute(database.sql("TRUNCATE {schema}.memory_outbox"))
    await _insert(database, target, "pending", number * BATCH + 1, (number + 1) * BATCH)


async def _claim(database: Database, target: Target) -> float:
    started = time.perf_counter()
    events = await claim(database, target, worker="bench", limit=BATCH, lease_seconds=60)
    took = time.perf_counter() - started
    verify(len(events) == BATCH, f"a claim gave {len(events)} of {BATCH} events")
    done = await complete(database, events)
    verify(len(done.ids) == BATCH, f"{len(done.ids)} of {BATCH} events were completed")
    return took


async def _verify(database: Database, target: Target, count: int, rounds: int) -> None:
    async with database.acquire() as connection:
        rows = await connection.fetch(
            database.sql("SELECT status, count(*) FROM {schema}.memory_outbox WHERE target = $1 GROUP BY status"),
            target.value,
        )
    found = {row["status"]: row["count"] for row in rows}
    claimed = rounds * BATCH
    verify(found == {"processed": count + claimed, "pending": count - claimed}, f"events ended as {found}")


def _result(bench: Bench, target: Target, times: dict[str, list[float]], count: int) -> Result:
    shares = (("p50", 0.5), ("p99", 0.99))
    note = "; ".join(
        f"{name}: " + ", ".join(f"{label} {1000 * percentile(values, share):.2f} ms" for label, share in shares)
        for name, values in times.items()
    )
    bench.say(f"{target.value}: {note}")
    return Result(
        f"{TITLE} ({target.value}), p50, {count:,} processed and pending",
        1000 * median(times["full"]),
        "ms",
        False,
        1000 * median(times["empty"]),
        "empty table",
        BOUND,
        note,
    )
