"""A full reconciliation of Milvus beside the plain scans of both sides: every memory, every field, every vector.

The product is `memplane reconcile milvus --full --audit` as a process of its own, whose time and memory are measured
from its start to its end. The peer reads the very same columns of the very same rows, one side after the other, and
compares nothing: from PostgreSQL through a cursor, from Milvus by ranges of the primary key with plain pymilvus, which
decodes a row when it is taken from the answer. It is measured both ways, with rows taken and with answers left alone.
One million memories of 64 dimensions, or as many as MEMPLANE_BENCH_MEMORIES says.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time

from pymilvus import MilvusClient

from bench.dataset import Dataset, projected
from bench.frame import Bench, Result, verify
from bench.processes import deployment
from bench.rows.milvus_projection import plain_client
from memplane.reconcile.milvus_columns import FIELDS
from memplane.schema.database import Database

NAME = "reconcile"
TITLE = "full reconciliation of Milvus"
MEMORIES = "MEMPLANE_BENCH_MEMORIES"
PEER_RANGES = (4_000, 8_000, 16_000)
RESIDENT_MB = 300
ROUNDS = 2

_WATCHED = """
import os, subprocess, sys
process = subprocess.Popen(sys.argv[1:])
_, status, usage = os.wait4(process.pid, 0)
print(usage.ru_maxrss, file=sys.stderr)
sys.exit(os.waitstatus_to_exitcode(status))
"""
"""A process that is started inherits the peak of the one that starts it, so a small one starts it."""

_TRUTH = """
SELECT m.id, m.version, m.tenant, m.user_id, m.content_hash, m.importance, m.category, m.tags, m.slot_hint,
       m.expires_at, m.metadata
FROM {schema}.long_term_memory AS m WHERE m.deleted_at IS NULL ORDER BY m.id
"""
_TRUE_VECTORS = "SELECT tenant, text_hash, vector FROM {schema}.memory_embedding"


async def run(bench: Bench) -> list[Result]:
    count = int(os.environ.get(MEMORIES) or bench.size(1_000_000, 20_000))
    async with projected(bench, count) as dataset, deployment(bench, dataset.database, projections=True) as made:
        client = plain_client(bench)
        try:
            size = await _best_range(bench, client, dataset)
            ours: list[tuple[float, float]] = []
            theirs: list[tuple[float, float]] = []
            for _ in range(ROUNDS):
                ours.append(await asyncio.to_thread(_reconcile, made.environment, count))
                theirs.append(await _plain_scans(bench, client, dataset, size))
        finally:
            client.close()
    seconds, resident = min(took for took, _ in ours), max(peak for _, peak in ours)
    title = f"{TITLE}, {count:,} memories"
    return [
        Result(title, seconds, "s", False, min(taken for taken, _ in theirs), "plain scans, rows taken", 1.3),
        Result(title, seconds, "s", False, min(left for _, left in theirs), "plain scans, answers left alone", 1.3),
        Result(f"{title}, resident at most", resident, "MB", False, bound=RESIDENT_MB),
    ]


def _reconcile(environment: dict[str, str], count: int) -> tuple[float, float]:
    """Seconds and peak of resident memory (MB) of one run."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "memplane", "--json", "reconcile", "milvus", "--full", "--audit"]
    process = subprocess.run(
        [sys.executable, "-c", _WATCHED, *command], env={**os.environ, **environment}, capture_output=True, check=False
    )
    took = time.perf_counter() - started
    verify(process.returncode == 0, f"the run ended with {process.returncode}: {process.stderr[-2000:]!r}")
    answer = json.loads(process.stdout)
    verify(answer["state"] == "completed", f"the run ended as {answer['state']}")
    verify(answer["scanned"] == count, f"{answer['scanned']} of {count} memories were compared")
    verify(answer["mismatches"] == {} and answer["unchecked"] == 0, f"it found {answer['mismatches']}")
    return took, int(process.stderr.split()[-1]) * 1024 / 1e6


async def _best_range(bench: Bench, client: MilvusClient, dataset: Dataset) -> int:
    """The size of a range that suits the peer best, tried on a tenth of the rows."""
    sample = max(1, dataset.count // 10)
    took = {size: _scan_milvus(client, dataset.generation.collection, sample, size) for size in PEER_RANGES}
    best = min(took, key=lambda size: took[size])
    bench.say(f"pymilvus reads best by ranges of {best:,} ids: {sample / took[best]:,.0f} rows/s")
    return best


async def _plain_scans(bench: Bench, client: MilvusClient, dataset: Dataset, size: int) -> tuple[float, float]:
    """Seconds with each row taken from Milvus' answers, and with answers that nobody looks into."""
    truth = await _scan_postgres(dataset.database, dataset.count)
    scan = (client, dataset.generation.collection, dataset.count, size)
    milvus = await asyncio.to_thread(_scan_milvus, *scan)
    answers = await asyncio.to_thread(_scan_milvus, *scan, decoded=False)
    bench.say(f"plain scans: PostgreSQL {truth:.1f} s, Milvus {milvus:.1f} s (its answers alone {answers:.1f} s)")
    return truth + milvus, truth + answers


async def _scan_postgres(database: Database, count: int) -> float:
    """Memories and their embeddings, each table in the order that suits it: joined they take longer."""
    started = time.perf_counter()
    async with database.transaction() as connection:
        for statement in (_TRUTH, _TRUE_VECTORS):
            seen = 0
            cursor = await connection.cursor(database.sql(statement))
            while rows := await cursor.fetch(10_000):
                seen += len(rows)
            verify(seen == count, f"PostgreSQL gave {seen} rows")
    return time.perf_counter() - started


def _scan_milvus(client: MilvusClient, collection: str, count: int, size: int, *, decoded: bool = True) -> float:
    started, seen = time.perf_counter(), 0
    for low in range(0, count, size):
        high = min(low + size, count)
        found = client.query(
            collection,
            filter=f"memory_id > {low} and memory_id <= {high}",
            output_fields=[*FIELDS, "vector"],
            consistency_level="Bounded",
            limit=16_384,
        )
        seen += sum("vector" in row for row in found) if decoded else len(found)
    verify(seen == count, f"Milvus gave {seen} rows")
    return time.perf_counter() - started
