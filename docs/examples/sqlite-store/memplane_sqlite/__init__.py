"""Memories in one SQLite file: an example of a store plugin."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from memplane.plugins.registry import Resources
from memplane_sqlite.backend import SqliteBackend


class SqliteSettings(BaseModel):
    """`store.options` of the plugin `sqlite`; an unknown option is refused at start."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: Path = Field(description="the database file; made when it does not exist")


class SqlitePlugin:
    """What the entry point names."""

    settings_model = SqliteSettings

    def create(self, settings: SqliteSettings, resources: Resources) -> SqliteBackend:
        """Builds and does no I/O: that is what `start` is for."""
        return SqliteBackend(settings.path)


plugin = SqlitePlugin()
