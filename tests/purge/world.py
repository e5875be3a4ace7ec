"""A user's memories in a real database, whose events and reconciliation runs are made by hand, and time that passes."""

from __future__ import annotations

from collections.abc import Iterable

from memplane.outbox.events import Target
from memplane.purge import Report, purge
from memplane.schema.database import Database
from memplane.settings import OutboxSettings, PurgeSettings, Settings
from tests.consolidation.world import User

PROJECTIONS = (Target.MILVUS, Target.NEO4J)
SETTINGS = Settings(
    outbox=OutboxSettings(max_attempts=1, lease_seconds=0.1, retention_seconds=3600),
    purge=PurgeSettings(
        retention_seconds=3600,
        full_interval_seconds=60,
        runs_retention_seconds=3600,
        audit_retention_seconds=7200,
        batch_size=5,
    ),
)


class Yard(User):
    """Memories, tombstones, and everything that a purge looks at."""

    def __init__(self, database: Database, *, targets: Iterable[Target] = tuple(Target)) -> None:
        super().__init__(database, targets=targets)
        self.targets = frozenset(targets)

    async def process(self) -> None:
        """All events are projected, as far as the outbox knows."""
        await self.rows(
            "UPDATE {schema}.memory_outbox SET status = 'processed', processed_at = clock_timestamp()"
            " WHERE status <> 'processed'"
        )

    async def full_run(self, *targets: Target, state: str = "completed", names: Iterable[int] = ()) -> int:
        """A full reconciliation that begins and ends now; returns its id."""
        run_id = 0
        for target in targets or PROJECTIONS:
            await self.rows(
                "INSERT INTO {schema}.projection_generation (target, state) VALUES ($1, 'active')"
                " ON CONFLICT DO NOTHING",
                target.value,
            )
            (row,) = await self.rows(
                "INSERT INTO {schema}.reconciliation_run"
                " (target, kind, mode, state, started_at, finished_at, generation_id, mismatches)"
                " SELECT $1, 'full', 'audit', $2, clock_timestamp(), clock_timestamp(), g.id, '{\"orphan\": 1}'"
                " FROM {schema}.projection_generation AS g WHERE g.target = $1 AND g.state = 'active' RETURNING id",
                target.value,
                state,
            )
            run_id = row["id"]
            for memory_id in names:
                await self.rows(
                    "INSERT INTO {schema}.reconciliation_finding (run_id, memory_id, type) VALUES ($1, $2, 'orphan')",
                    run_id,
                    memory_id,
                )
        return run_id

    async def pass_time(self, seconds: float) -> None:
        """Everything that is in the database happened this much earlier."""
        for table, columns in {
            "long_term_memory": ("created_at", "updated_at", "deleted_at", "settled_at"),
            "memory_edge": ("deleted_at",),
            "memory_outbox": ("created_at", "processed_at"),
            "reconciliation_run": ("started_at", "finished_at"),
            "memory_supersedes": ("created_at",),
            "memory_embedding": ("created_at",),
        }.items():
            earlier = ", ".join(f"{column} = {column} - $1 * interval '1 second'" for column in columns)
            await self.rows(f"UPDATE {{schema}}.{table} SET {earlier}", seconds)

    async def purge(self, *, dry_run: bool = False, settings: Settings = SETTINGS) -> Report:
        return await purge(self.database, settings, self.targets, dry_run=dry_run)

    async def ids(self) -> set[int]:
        """Every row that is left, tombstones too."""
        return {row["id"] for row in await self.rows("SELECT id FROM {schema}.long_term_memory")}

    async def deleted(self, count: int = 1) -> list[int]:
        """Memories that are deleted, whose retention has passed, and that every target was proven not to hold."""
        made = await self.write(*(f"text {number}" for number in range(count)))
        await self.process()
        await self.delete(*made)
        await self.process()
        await self.pass_time(4000)
        await self.full_run()
        return made
