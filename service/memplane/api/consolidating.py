"""What consolidation and purge need of a process: from its settings and connections to a job, and to the truth."""

from __future__ import annotations

from collections.abc import Collection

from memplane.api.connections import Connections
from memplane.consolidation import Job
from memplane.consolidation.policy import make_policy
from memplane.errors import SettingsError
from memplane.plugins.postgres.writing import Writing
from memplane.schema.committed import OnCommit
from memplane.settings import Rule


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


def require_postgres(connections: Connections) -> None:
    """Raise `SettingsError` unless the memories are in PostgreSQL: no other store is consolidated or purged."""
    plugin = connections.settings.store.plugin
    if plugin != "postgres":
        raise SettingsError(f"store.plugin is {plugin!r}: only memories in PostgreSQL are consolidated and purged")
