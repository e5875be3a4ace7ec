"""Running commands in this process, on a database of the test's own."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from memplane.cli.app import app
from memplane.settings import PostgresSettings, Settings
from tests.http.processes import write_settings
from tests.http.world import keys, settings

__all__ = ["keys", "settings"]


@pytest.fixture(autouse=True)
def quiet_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No settings of the developer's environment, and the test runner's log handlers afterwards."""
    for name in list(os.environ):
        if name.startswith("MEMPLANE_"):
            monkeypatch.delenv(name)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@dataclass
class Command:
    """`memplane --config FILE …`."""

    config: Path | None

    def __call__(self, *arguments: str) -> Result:
        options = [] if self.config is None else ["--config", str(self.config)]
        return CliRunner().invoke(app, [*options, *arguments])

    def json(self, *arguments: str, code: int = 0) -> Any:
        """The document that a command prints; its exit code must be `code`."""
        result = self("--json", *arguments)
        assert result.exit_code == code, (result.exit_code, result.output, result.stderr)
        return json.loads(result.stdout)


@pytest.fixture
def bare() -> Command:
    """Without a settings file."""
    return Command(None)


@pytest.fixture
def memplane(postgres_settings: PostgresSettings, tmp_path: Path) -> Command:
    """On a migrated database, without projections."""
    settings = Settings(postgres=postgres_settings)
    return Command(write_settings(settings, tmp_path / "settings.yaml"))
