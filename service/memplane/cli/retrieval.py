"""`memplane retrieval`: the search of a backend in a process of its own."""

from __future__ import annotations

import logging

import typer

from memplane.cli.context import Context, run_command

log = logging.getLogger(__name__)


def retrieval(context: typer.Context) -> None:
    """Run searches for services whose search plugin is `retrieval`. Run as many as you like behind one address.

    Whoever has `retrieval.token` can search in every scope: keep it between service and this process.
    """
    from memplane.api.retrieval_process import RetrievalProcess
    from memplane.cli.serving import serve_until_stopped

    async def command(ours: Context) -> None:
        settings = ours.settings()
        await serve_until_stopped(
            RetrievalProcess(settings), settings.retrieval.host, settings.retrieval.port, _log_listening
        )

    run_command(context, command)


async def _log_listening(url: str) -> None:
    log.info("listening", extra={"url": url})


def add_to(app: typer.Typer) -> None:
    app.command()(retrieval)
