"""Rebuilds in figures: how far the unfinished one of each target is, whether somebody works on it, and generations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily, Metric

from memplane.outbox.counted import CountedMetrics
from memplane.schema.database import Database

_REBUILDS = """
SELECT target, stage, done, total, COALESCE(held_until > statement_timestamp(), FALSE) AS held
FROM {schema}.rebuild_run WHERE state = 'unfinished'
"""

_GENERATIONS = """
SELECT target, state, count(*) AS generations FROM {schema}.projection_generation
WHERE state <> 'dropped' GROUP BY target, state
"""


@dataclass(frozen=True, slots=True)
class _Rebuild:
    target: str
    stage: str
    done: int
    total: int
    held: bool


@dataclass(frozen=True, slots=True)
class _Counted:
    rebuilds: list[_Rebuild]
    generations: dict[tuple[str, str], int]


class RebuildMetrics(CountedMetrics[_Counted]):
    """`memory_rebuild_…{target,stage}` of unfinished rebuilds, and `memory_projection_generations{target,state}`."""

    async def count(self, database: Database) -> _Counted:
        async with database.acquire() as connection:
            rebuilds = await connection.fetch(database.sql(_REBUILDS))
            generations = await connection.fetch(database.sql(_GENERATIONS))
        return _Counted(
            [_Rebuild(row["target"], row["stage"], row["done"], row["total"], row["held"]) for row in rebuilds],
            {(row["target"], row["state"]): row["generations"] for row in generations},
        )

    def render(self, figures: _Counted) -> Iterator[Metric]:
        labels = ["target", "stage"]
        running = GaugeMetricFamily(
            "memory_rebuild_running", "An unfinished rebuild: 1 while a process works on it, else 0", labels=labels
        )
        done = GaugeMetricFamily("memory_rebuild_done", "Memories that its stage has worked off", labels=labels)
        total = GaugeMetricFamily("memory_rebuild_memories", "Memories of its stage, about", labels=labels)
        for one in figures.rebuilds:
            running.add_metric([one.target, one.stage], float(one.held))
            done.add_metric([one.target, one.stage], one.done)
            total.add_metric([one.target, one.stage], one.total)
        yield from (running, done, total)
        generations = GaugeMetricFamily(
            "memory_projection_generations", "Generations that are not dropped", labels=["target", "state"]
        )
        for (target, state), count in figures.generations.items():
            generations.add_metric([target, state], count)
        yield generations
