"""The command line, put together from its commands."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from memplane.cli import (
    consolidate,
    doctor,
    drop,
    fulfillment,
    keys,
    migrate,
    outbox,
    processes,
    purge,
    rebuild,
    reconcile,
    recovery,
    retrieval,
)
from memplane.cli.context import Context

app = typer.Typer(
    name="memplane",
    help="The memory plane for AI agents: one PostgreSQL truth, projections that converge to it.\n\n"
    "Start with `memplane dev`, which needs nothing else. Settings come from a YAML file (--config or "
    "MEMPLANE_CONFIG_FILE) and from the environment: MEMPLANE_POSTGRES__DSN is `postgres.dsn`.",
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage, 3 wrong settings, 4 schema or identity refused, "
    "5 a server is away, 6 something was found that needs you, 7 no such thing.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(version("memplane"))
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option(help="YAML file of settings; the environment (MEMPLANE_…__…) overrides it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")] = False,
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the release and end.")
    ] = False,
) -> None:
    context.obj = Context(config=config, as_json=as_json)


processes.add_to(app)
retrieval.add_to(app)
migrate.add_to(app)
app.add_typer(outbox.app, name="outbox", no_args_is_help=True)
reconcile.add_to(app)
consolidate.add_to(app)
purge.add_to(app)
rebuild.add_to(app)
doctor.add_to(app)
drop.add_to(app)
app.add_typer(keys.app, name="keys", no_args_is_help=True)
app.add_typer(recovery.app, name="recovery", no_args_is_help=True)
app.add_typer(fulfillment.app, name="fulfillment", no_args_is_help=True)


def run() -> None:
    """Entry point."""
    app()
