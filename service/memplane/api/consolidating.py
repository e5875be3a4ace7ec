"""What consolidation and purge need of a process: from its settings and connections to a job, and to the truth."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from memplane.api.connections import Connections
from memplane.api.upkeep import StoppablePass
from memplane.consolidation import Job, Report, consolidate, scopes
from memplane.consolidation.policy import make_policy
from memplane.errors import SettingsError
from memplane.plugins.postgres.writing import Writing
from memplane.purge import purge
from memplane.schema.committed import OnCommit
from memplane.settings import Rule
from memplane.signal import Signal

if TYPE_CHECKING:
    from memplane.api.admin.consolidation import ConsolidationPlane


def job_of(connections: Connections, rules: Collection[Rule] = ()) -> Job:
    """The configured consolidation, or one with other rules. Raises `SettingsError` for a wrong policy."""
    settings = connections.settings.consolidation
    return Job(settings, frozenset(rules or settings.rules), make_policy(settings, connections.resources()))


def writing_of(connections: Connections, on_commit: OnCommit | None = None) -> Writing:
    """How changes are written. Raises `SettingsError` when the truth is in another store."""
    require_postgres(connections)
    embedding = connections.embedding
    return Writing(
        connections.database,
        connections.targets,
        embedding=(embedding.model, embedding.revision),
        on_commit=on_commit,
    )


def plane_of(connections: Connections, on_commit: OnCommit | None) -> ConsolidationPlane:
    """What the admin API works on. Raises `SettingsError` for a wrong policy."""
    # Commands use this module, too, and need no web framework.
    from memplane.api.admin.consolidation import ConsolidationPlane

    job_of(connections)
    return ConsolidationPlane(
        connections.database,
        connections.settings,
        connections.targets,
        writing_of(connections, on_commit),
        lambda rules: job_of(connections, rules),
    )


def scheduled(connections: Connections, on_commit: OnCommit | None) -> dict[str, tuple[float, StoppablePass]]:
    """What the service does by itself, by the settings: name → (seconds between two passes, the pass)."""
    settings = connections.settings
    passes: dict[str, tuple[float, StoppablePass]] = {}

    async def consolidating(signal: Signal) -> int:
        job, writing, report = job_of(connections), writing_of(connections, on_commit), Report()
        async for scope in scopes(connections.database):
            if signal.aborted:
                break
            await consolidate(writing, scope, job, report=report, signal=signal)
        return report.changed

    async def purging(signal: Signal) -> int:
        report = await purge(connections.database, settings, connections.targets, signal=signal)
        return sum(report.removed.values())

    if settings.consolidation.interval_seconds > 0 and settings.consolidation.rules:
        passes["consolidation"] = (settings.consolidation.interval_seconds, consolidating)
    if settings.purge.interval_seconds > 0:
        passes["purge"] = (settings.purge.interval_seconds, purging)
    return passes


def require_postgres(connections: Connections) -> None:
    """Raise `SettingsError` unless the memories are in PostgreSQL: no other store is consolidated or purged."""
    plugin = connections.settings.store.plugin
    if plugin != "postgres":
        raise SettingsError(f"store.plugin is {plugin!r}: only memories in PostgreSQL are consolidated and purged")
