"""Commands that run until they are told to stop: `dev`, `serve`, `worker`.

Each imports what it serves when it runs, so that other commands start without a web framework.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from memplane.api.logs import set_up_logs
from memplane.cli.context import Context, run_command
from memplane.cli.targets import WorkerTarget
from memplane.outbox.events import Target
from memplane.outbox.logs import EVENT_FIELDS

log = logging.getLogger(__name__)

DEFAULT_DATA = Path(".memplane") / "dev"
DEFAULT_PORT = 8080


def dev(
    context: typer.Context,
    data: Annotated[Path, typer.Option(help="Folder that holds the data; kept for the next run.")] = DEFAULT_DATA,
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1; 0 takes a free one.")] = DEFAULT_PORT,
) -> None:
    """Run everything in this process: PostgreSQL, Milvus Lite, service and workers. Needs nothing else.

    PostgreSQL, Milvus and Neo4j that are configured are used instead (MEMPLANE_POSTGRES__DSN, MEMPLANE_MILVUS__URI,
    MEMPLANE_NEO4J__URI). There is no authentication, and only this machine can connect.
    """
    from memplane.cli.dev import dev_process
    from memplane.cli.serving import serve_until_stopped

    async def command(ours: Context) -> None:
        output = ours.output()
        async with dev_process(data, port=port, config=ours.config) as process:
            set_up_logs(process.settings.log)

            async def listening(url: str) -> None:
                await process.ready()
                output.say(f"memplane is ready at {url}   reference: {url}/docs   data: {data}   end: Ctrl-C")

            await serve_until_stopped(process, "127.0.0.1", port, listening)

    run_command(context, command)


def serve(context: typer.Context) -> None:
    """Run the HTTP service. Outbox workers run elsewhere: `memplane worker TARGET`.

    It starts while PostgreSQL is away (`/readyz` tells) and heals by itself.
    """
    from memplane.api.compose import ServiceProcess
    from memplane.cli.serving import serve_until_stopped

    async def command(ours: Context) -> None:
        settings = ours.settings()
        await serve_until_stopped(
            ServiceProcess(settings), settings.service.host, settings.service.port, _log_listening
        )

    run_command(context, command)


def worker(
    context: typer.Context,
    target: Annotated[WorkerTarget, typer.Argument(help="The projection to keep equal to the truth.")],
) -> None:
    """Run the outbox worker of one target, with /metrics and /livez at `worker.port`. Run as many as you like."""
    from memplane.api.worker_process import WorkerProcess
    from memplane.cli.serving import serve_until_stopped

    async def command(ours: Context) -> None:
        settings = ours.settings()
        set_up_logs(settings.log, always=EVENT_FIELDS)
        process = WorkerProcess(settings, Target(target.value))
        await serve_until_stopped(process, settings.worker.host, settings.worker.port, _log_listening)

    run_command(context, command)


async def _log_listening(url: str) -> None:
    log.info("listening", extra={"url": url})


def add_to(app: typer.Typer) -> None:
    for command in (dev, serve, worker):
        app.command()(command)
