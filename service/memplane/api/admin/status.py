"""The status document: what the operator writes into a `MemoryBackend`'s status (design section 9)."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any
from uuid import UUID

from memplane.api.admin.models import Dependency, ReconciliationRun, Status, TargetStatus
from memplane.api.admin.runs import drift_of, newest_runs
from memplane.api.plane import Check, Health
from memplane.errors import IdentityError, SchemaError, TargetUnavailable
from memplane.outbox.events import Target
from memplane.schema.database import Database
from memplane.schema.identity import read_identity
from memplane.schema.migrate import check as check_schema
from memplane.settings import Settings

_BACKLOG = """
SELECT target,
       count(*) FILTER (WHERE status <> 'dead') AS backlog,
       count(*) FILTER (WHERE status = 'dead') AS dead,
       coalesce(extract(epoch FROM now() - min(created_at) FILTER (WHERE status <> 'dead')), 0)::float8 AS lag
FROM {schema}.memory_outbox
WHERE status IN ('pending', 'processing', 'dead')
GROUP BY target
"""


async def read_status(
    database: Database | None, settings: Settings, targets: frozenset[Target], health: Health
) -> Status:
    """The status; it also answers, with what is known, while PostgreSQL is away. No `database`: another store's."""
    checks = await health.checks()
    backlog: dict[str, tuple[int, int, float]] = {}
    runs: Mapping[str, ReconciliationRun | None] = {}
    incremental: Mapping[str, ReconciliationRun | None] = {}
    level: int | None = None
    identity: UUID | None = None
    try:
        if database is not None:
            level = await check_schema(database)
            identity = await read_identity(database)
            backlog = await _backlog(database)
            runs = await newest_runs(database, [target.value for target in Target], "full")
            incremental = await newest_runs(database, [target.value for target in Target], "incremental")
    except (TargetUnavailable, SchemaError, IdentityError):
        pass  # `checks` says so
    decisive = [checks[name] for name in health.decisive]
    ready = all(check.ok for check in decisive)
    return Status(
        version=version("memplane"),
        schema_version=level,
        backend_id=identity,
        ready=ready,
        store=Dependency(ok=ready, detail=next((check.detail for check in decisive if check.detail), "")),
        targets={
            target.value: TargetStatus(
                enabled=target in targets,
                mode=settings.outbox.mode,
                drift=drift_of(runs.get(target.value)),
                last_full_run=runs.get(target.value),
                last_incremental_run=incremental.get(target.value),
                **_reached(checks.get(target.value)),
                **_counted(backlog.get(target.value, (0, 0, 0.0))),
            )
            for target in Target
        },
    )


async def _backlog(database: Database) -> dict[str, tuple[int, int, float]]:
    async with database.acquire() as connection:
        rows = await connection.fetch(database.sql(_BACKLOG))
    return {row["target"]: (row["backlog"], row["dead"], max(0.0, row["lag"])) for row in rows}


def _reached(check: Check | None) -> dict[str, Any]:
    return {"reachable": check.ok, "detail": check.detail} if check is not None else {"reachable": None}


def _counted(figures: tuple[int, int, float]) -> dict[str, Any]:
    backlog, dead, lag = figures
    return {"backlog": backlog, "dead": dead, "lag_seconds": round(lag, 3)}
