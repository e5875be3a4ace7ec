"""The commands. Each is a few lines: read the options, call what does the work, print the result."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from memplane.api.compose import ServiceProcess
from memplane.api.logs import set_up_logs
from memplane.cli.context import Context, run_command
from memplane.cli.dev import DEFAULT_DATA, DEFAULT_PORT, dev_process
from memplane.cli.serving import serve_until_stopped
from memplane.settings import LogSettings

log = logging.getLogger(__name__)

app = typer.Typer(
    name="memplane",
    help="The memory plane for AI agents: one PostgreSQL truth, projections that converge to it.\n\n"
    "Start with `memplane dev`: it needs nothing else.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


@app.callback()
def options(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option(help="YAML file of settings; the environment (MEMPLANE_…__…) overrides it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")] = False,
) -> None:
    context.obj = Context(config=config, as_json=as_json)


@app.command()
def dev(
    context: typer.Context,
    data: Annotated[Path, typer.Option(help="Folder that holds the data; kept for the next run.")] = DEFAULT_DATA,
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1; 0 takes a free one.")] = DEFAULT_PORT,
) -> None:
    """Run everything in this process: PostgreSQL, Milvus Lite, service, workers. No authentication, loopback only."""

    async def command(ours: Context) -> None:
        output = ours.output()
        set_up_logs(LogSettings(format="text"))

        async def listening(url: str) -> None:
            await process.ready()
            output.say(f"memplane is ready at {url}  (reference: {url}/docs, data: {data}, end with Ctrl-C)")

        async with dev_process(data, port=port, config=ours.config) as process:
            await serve_until_stopped(process, listening)

    run_command(context, command)


@app.command()
def serve(context: typer.Context) -> None:
    """Run the HTTP service. Outbox workers run elsewhere: `memplane worker TARGET`."""

    async def command(ours: Context) -> None:
        settings = ours.settings()
        process = ServiceProcess(settings)

        async def listening(url: str) -> None:
            log.info("listening", extra={"url": url})

        await serve_until_stopped(process, listening)

    run_command(context, command)


def run() -> None:
    """Entry point."""
    app()
