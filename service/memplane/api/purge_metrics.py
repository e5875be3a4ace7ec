"""Tombstones, and what purge and consolidation have done, in figures that are counted in PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.metrics_core import CounterMetricFamily

from memplane.consolidation.apply import ACTIVITY as CONSOLIDATED
from memplane.outbox.counted import CountedMetrics
from memplane.purge.tombstones import ACTIVITY as PURGED
from memplane.schema.database import Database
from memplane.schema.totals import read_totals

KINDS: Final = ("tombstones", "edges", "embeddings", "runs", "supersedes")
RULES: Final = ("exact", "near", "decay", "expiry", "policy")

_TOMBSTONES: Final = "SELECT count(*) FROM {schema}.long_term_memory WHERE deleted_at IS NOT NULL"


@dataclass(frozen=True, slots=True)
class _Counted:
    tombstones: int
    totals: dict[tuple[str, str], int]


class PurgeMetrics(CountedMetrics[_Counted]):
    """`memory_tombstones`, `memory_purged_total{kind}` and `memory_consolidated_total{rule}`."""

    async def count(self, database: Database) -> _Counted:
        async with database.acquire() as connection:
            tombstones = await connection.fetchval(database.sql(_TOMBSTONES))
            return _Counted(tombstones, await read_totals(connection, database))

    def render(self, figures: _Counted) -> Iterator[Metric]:
        yield GaugeMetricFamily("memory_tombstones", "Deleted memories that are not yet purged", figures.tombstones)
        purged = CounterMetricFamily("memory_purged_total", "Rows removed by purge", labels=["kind"])
        for kind in KINDS:
            purged.add_metric([kind], figures.totals.get((PURGED, kind), 0))
        yield purged
        done = CounterMetricFamily(
            "memory_consolidated_total", "Memories that consolidation merged away, wrote or expired", labels=["rule"]
        )
        for rule in RULES:
            done.add_metric([rule], figures.totals.get((CONSOLIDATED, rule), 0))
        yield done
