"""The store on PostgreSQL, the only truth: scoped, versioned, atomic; every change leaves its events in the outbox."""

from memplane.plugins.postgres.backend import PostgresBackend
from memplane.plugins.postgres.delete import expire
from memplane.plugins.postgres.inspection import memory_state
from memplane.plugins.postgres.plugin import plugin
from memplane.plugins.postgres.rows import hydrate

__all__ = ["PostgresBackend", "expire", "hydrate", "memory_state", "plugin"]
