"""What every command has: its settings, its output, and one way to end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from memplane.api.connections import Connections, connect
from memplane.api.logs import set_up_logs
from memplane.cli.exit_codes import ExitCode, exit_code_of
from memplane.cli.output import Output
from memplane.errors import MemplaneError
from memplane.settings import Settings, load_settings


@dataclass(slots=True)
class Context:
    """The global options; `typer.Context.obj` of every command."""

    config: Path | None
    as_json: bool

    def output(self) -> Output:
        return Output(as_json=self.as_json)

    def settings(self, overrides: dict[str, object] | None = None) -> Settings:
        """The settings of this process; logs are set up by them. Raises `SettingsError`."""
        settings = load_settings(self.config, overrides)
        set_up_logs(settings.log)
        return settings


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it can be had (it spares outbox workers a fifth of their time), else asyncio's own loop."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def run_command(context: typer.Context, command: Callable[[Context], Coroutine[Any, Any, int | None]]) -> None:
    """Run a command and end the process with its exit code; every error of ours is one line, never a stack."""
    ours: Context = context.obj
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            code = runner.run(command(ours))
    except MemplaneError as error:
        ours.output().error(str(error))
        raise typer.Exit(exit_code_of(error)) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    raise typer.Exit(code or ExitCode.OK)


@asynccontextmanager
async def connected(settings: Settings) -> AsyncIterator[Connections]:
    """The backend's connections for one command."""
    connections = connect(settings, application_name="memplane-cli")
    try:
        yield connections
    finally:
        await connections.close()
