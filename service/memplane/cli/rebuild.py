"""`memplane rebuild TARGET`: make a projection anew from PostgreSQL while the service keeps serving."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Annotated

import typer

from memplane.api.connections import Connections
from memplane.cli.context import Context, connected, run_command
from memplane.cli.exit_codes import ExitCode
from memplane.cli.interrupts import interruptible
from memplane.cli.output import Output
from memplane.cli.progress import Show, shown
from memplane.errors import SettingsError
from memplane.outbox.events import Target
from memplane.projections.embedding import StoredEmbeddings
from memplane.rebuild import (
    Logged,
    Progress,
    ProgressCallback,
    Report,
    abort,
    clear_caches,
    drop_retired,
    end_grace,
    rebuild_milvus,
    rebuild_neo4j,
)
from memplane.settings import RebuildSettings, Settings
from memplane.signal import Signal

STAGES = {
    "fill": "copying",
    "sweep": "sweeping",
    "unmark": "taking marks off",
    "repair": "comparing",
    "verify": "comparing",
}
"""What a person is told; the rest of the line is the target."""


class RebuildTarget(StrEnum):
    MILVUS = "milvus"
    NEO4J = "neo4j"
    LTM_CACHE = "ltm_cache"


def rebuild(
    context: typer.Context,
    target: Annotated[RebuildTarget, typer.Argument(help="What is to be made anew.")],
    *,
    model: Annotated[
        str | None,
        typer.Option(
            help="Model of the new vectors: the one of `embedding` (the default) or of `embedding_previous`. Any other"
            " name is refused."
        ),
    ] = None,
    rate: Annotated[float | None, typer.Option(min=0, help="Memories per second at most; 0: no limit.")] = None,
    allow_orphans: Annotated[
        bool,
        typer.Option(help="Neo4j: remove any number of nodes without a memory; else a rebuild with too many stops."),
    ] = False,
    accept_ineffective: Annotated[
        bool, typer.Option(help="Milvus: switch although some memories cannot be projected (their events are dead).")
    ] = False,
    abort_it: Annotated[
        bool, typer.Option("--abort", help="End the unfinished rebuild and drop what it was building.")
    ] = False,
    finish: Annotated[
        bool, typer.Option("--finish", help="Drop replaced Milvus collections now, without their time of grace.")
    ] = False,
) -> None:
    """Make a projection anew from PostgreSQL alone, while the service keeps serving.

    milvus: a new collection beside the old one, then a switch; also for another embedding model. neo4j: in place.
    ltm_cache: every service process forgets its cached bodies.

    Workers must be running. Ctrl-C and a killed process leave the rebuild unfinished: run the command again and it goes
    on. Exit code 0: done, and the projection equals the truth.
    """

    async def command(ours: Context) -> int:
        if abort_it and finish:
            raise SettingsError("give one of --abort and --finish")
        output, settings = ours.output(), ours.settings()
        async with connected(settings) as connections:
            if abort_it:
                return await _abort(connections, Target(target.value), output)
            if finish:
                return await _finish(connections, output)
            limits = settings.rebuild if rate is None else settings.rebuild.model_copy(update={"rate": rate})
            asked = _Asked(target, limits, model, allow_orphans, accept_ineffective)
            with interruptible() as stop, shown(output, target.value) as show:
                progress = Logged(Target(target.value), _telling(show, target.value))
                report = await _rebuild(connections, asked, stop, progress)
        _print(output, report)
        return ExitCode.OK if report.state == "completed" else 130

    run_command(context, command)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the command line asks for."""

    target: RebuildTarget
    limits: RebuildSettings
    model: str | None
    allow_orphans: bool
    accept_ineffective: bool


async def _rebuild(connections: Connections, asked: _Asked, signal: Signal, progress: ProgressCallback) -> Report:
    _check(connections.settings, asked.target)
    database = connections.database
    if asked.target is RebuildTarget.LTM_CACHE:
        return await clear_caches(database)
    if asked.target is RebuildTarget.NEO4J:
        if connections.neo4j is None:
            raise SettingsError("neo4j.uri is required to rebuild neo4j")
        return await rebuild_neo4j(
            database,
            connections.neo4j,
            asked.limits,
            allow_orphans=asked.allow_orphans,
            signal=signal,
            progress=progress,
        )
    if connections.milvus is None:
        raise SettingsError("milvus.uri is required to rebuild milvus")
    return await rebuild_milvus(
        database,
        connections.milvus,
        _embeddings(connections, asked.model),
        asked.limits,
        accept_ineffective=asked.accept_ineffective,
        signal=signal,
        progress=progress,
    )


def _check(settings: Settings, target: RebuildTarget) -> None:
    if target is not RebuildTarget.LTM_CACHE and settings.outbox.mode == "Shadow":
        raise SettingsError("outbox.mode is Shadow: workers write nothing, so a rebuild cannot be kept up to date")


def _embeddings(connections: Connections, model: str | None) -> StoredEmbeddings:
    """The vectors of the model that was asked for. Raises `SettingsError` when no setting names it."""
    known = [connections.embeddings()]
    if (previous := connections.previous_embeddings()) is not None:
        known.append(previous)
    if model is None:
        return known[0]
    for embeddings in known:
        if embeddings.provider.model == model:
            return embeddings
    names = " and ".join(repr(one.provider.model) for one in known)
    raise SettingsError(f"--model: no setting names this model; embedding and embedding_previous name {names}")


async def _abort(connections: Connections, target: Target, output: Output) -> int:
    ended = await abort(connections.database, connections.milvus, target)
    if output.as_json:
        output.document({"aborted": None if ended is None else asdict(ended)})
    elif ended is None:
        output.say(f"No rebuild of {target} is unfinished.")
    elif ended.collection:
        output.say(f"The rebuild is ended, and its collection {ended.collection} is dropped.")
    else:
        output.say("The rebuild is ended. What it had written stays.")
    return ExitCode.OK if ended is not None else ExitCode.NOT_FOUND


async def _finish(connections: Connections, output: Output) -> int:
    if connections.milvus is None:
        raise SettingsError("milvus.uri is required to drop collections")
    await end_grace(connections.database)
    gone = await drop_retired(connections.database, connections.milvus)
    if output.as_json:
        output.document({"dropped": gone})
    else:
        output.say(f"Dropped: {', '.join(gone)}." if gone else "No replaced collection was left.")
    return ExitCode.OK


def _telling(show: Show, target: str) -> ProgressCallback:
    def tell(progress: Progress) -> None:
        note = f", {progress.note}" if progress.note else ""
        show(f"{STAGES.get(progress.stage, progress.stage)} {target}{note}", progress.done, progress.total)

    return tell


def _print(output: Output, report: Report) -> None:
    if output.as_json:
        output.document(asdict(report))
        return
    if report.state == "cancelled":
        output.say(f"{report.target}: rebuild {report.run_id} is unfinished. Run the command again to go on.")
        return
    if report.target is Target.LTM_CACHE:
        output.say("Every service process forgets its cached bodies.")
        return
    swept = f", {report.swept} without a memory removed" if report.swept else ""
    output.say(
        f"{report.target}: rebuild {report.run_id} completed, {report.copied} memories written{swept}, "
        f"{report.repaired} repaired meanwhile. It equals the truth."
    )
    if report.retired:
        output.say(f"{report.collection} is in use. {report.retired} is dropped after its time of grace.")


def add_to(app: typer.Typer) -> None:
    app.command()(rebuild)
