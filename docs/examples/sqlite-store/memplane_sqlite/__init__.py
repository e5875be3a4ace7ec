"""Memories in one SQLite file: an example of a store plugin."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from memplane.errors import SettingsError
from memplane.plugins.registry import Resources
from memplane_sqlite.backend import SqliteBackend


class SqliteSettings(BaseModel):
    """`store.options` of the plugin `sqlite`; an unknown option is refused at start."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: Path | None = Field(None, description="the database file; made when it does not exist")
    path_file: Path | None = Field(
        None,
        description="a file that holds the path: how a Secret arrives in a pod, and how a URL with a password would",
    )

    @model_validator(mode="after")
    def _one_path(self) -> Self:
        if (self.path is None) == (self.path_file is None):
            raise ValueError("give path or path_file")
        return self

    def database(self) -> Path:
        """The database file. Raises `SettingsError`, which must not repeat what a Secret holds."""
        if self.path_file is None:
            assert self.path is not None
            return self.path
        try:
            return Path(self.path_file.read_text(encoding="utf-8").strip())
        except OSError as error:
            raise SettingsError(f"store.options.path_file cannot be read: {error.strerror}") from None


class SqlitePlugin:
    """What the entry point names."""

    settings_model = SqliteSettings

    def create(self, settings: SqliteSettings, resources: Resources) -> SqliteBackend:
        """Builds and does no I/O: that is what `start` is for."""
        return SqliteBackend(settings.database)


plugin = SqlitePlugin()
