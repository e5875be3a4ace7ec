"""`memplane doctor`: what is wrong with this backend, and what to do about it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import asyncpg
import typer

from memplane.api.connections import Connections
from memplane.cli.after_restore import move_ids_past_projections
from memplane.cli.context import Context, connected, run_command
from memplane.cli.exit_codes import ExitCode
from memplane.cli.output import Output
from memplane.errors import IdentityError, MemplaneError
from memplane.outbox.admin import backlog
from memplane.outbox.events import Target
from memplane.projections.generation import check_space, read_generation
from memplane.schema.database import Database
from memplane.schema.identity import read_identity, renew_identity
from memplane.schema.migrate import check as check_schema

LATE_SECONDS = 60.0
"""An event that waits longer than this is a finding."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One check. `advice` is empty when it is fine."""

    check: str
    ok: bool
    detail: str
    advice: str = ""


def doctor(
    context: typer.Context,
    new_identity: Annotated[
        bool,
        typer.Option(help="This database is a copy: give it an identity of its own, with projections filled anew."),
    ] = False,
    keep_id: Annotated[
        bool, typer.Option(help="With --new-identity: keep the id, because the original is gone for good.")
    ] = False,
    after_restore: Annotated[
        bool, typer.Option(help="The database was restored from a backup: move ids past what the projections hold.")
    ] = False,
) -> None:
    """Check settings, database, schema, identity, projections, embedding provider and backlog. Changes nothing
    unless told to by an option."""

    async def command(ours: Context) -> int:
        output = ours.output()
        async with connected(ours.settings()) as connections:
            if new_identity:
                backend = await renew_identity(connections.database, keep_id=keep_id)
                output.say(f"This database is backend {backend} now. Restart the service and the workers.")
            if after_restore:
                await _after_restore(connections, output)
            findings = await examine(connections)
        _print(output, findings)
        return ExitCode.OK if all(finding.ok for finding in findings) else ExitCode.FOUND

    run_command(context, command)


async def _after_restore(connections: Connections, output: Output) -> None:
    newest = await move_ids_past_projections(connections)
    for target, newest_id in newest.items():
        output.say(f"{target} holds ids up to {newest_id}.")
    output.say("New ids start after them. Now run, for each target: memplane reconcile TARGET --full --repair")


def _print(output: Output, findings: list[Finding]) -> None:
    if output.as_json:
        output.document(
            [{"check": one.check, "ok": one.ok, "detail": one.detail, "advice": one.advice} for one in findings]
        )
        return
    output.table(
        ["", "check", "found", "what to do"],
        [["ok" if one.ok else "!!", one.check, one.detail, one.advice] for one in findings],
        empty="",
    )


async def examine(connections: Connections) -> list[Finding]:
    """All checks, in the order in which they depend on each other."""
    database = connections.database
    findings = [await _check("postgresql", lambda: _reachable(database), "check postgres.dsn and the server")]
    if findings[0].ok:
        findings.append(await _check("schema", lambda: _schema(database), "run `memplane migrate`"))
        findings.append(await _check("identity", lambda: _identity(database), "if it is a copy: --new-identity"))
    for name, connection in connections.probed().items():
        answers = await connection.healthy()
        advice = "" if answers else f"check {name}.uri, its credentials and the server"
        findings.append(Finding(name, answers, "answers" if answers else "does not answer", advice))
        if answers and all(one.ok for one in findings):
            findings.append(
                await _check(
                    f"{name} projection",
                    partial(_owned, connections, Target(name)),
                    "memplane reconcile, or restore the settings",
                )
            )
    embeds = await connections.embeddings().healthy()
    findings.append(
        Finding("embedding", embeds, connections.embedding.model, "" if embeds else "check embedding.options")
    )
    if all(one.ok for one in findings[:3]) and len(findings) > 2:
        findings += await _backlog(database)
    return findings


async def _check(name: str, look: Callable[[], Awaitable[str]], advice: str) -> Finding:
    try:
        return Finding(name, True, await look())
    except MemplaneError as error:
        return Finding(name, False, str(error), advice)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        return Finding(name, False, f"it failed ({type(error).__name__})", advice)


async def _reachable(database: Database) -> str:
    async with database.acquire() as connection:
        version = await connection.fetchval("SHOW server_version")
        if await connection.fetchval("SELECT pg_is_in_recovery()"):
            return f"PostgreSQL {version}, a read-only standby"
    return f"PostgreSQL {version}"


async def _schema(database: Database) -> str:
    return f"level {await check_schema(database)}"


async def _identity(database: Database) -> str:
    return str(await read_identity(database))


async def _owned(connections: Connections, target: Target) -> str:
    """Whether the active generation fits the settings and is there."""
    generation = await read_generation(connections.database, target)
    if generation is None:
        return "not filled yet: no worker has started"
    if target is Target.MILVUS and connections.milvus is not None:
        known = (connections.embedding, connections.embedding_previous)
        check_space(generation, *(one for one in known if one is not None))
        if not await connections.milvus.call("has_collection", generation.collection):
            raise IdentityError(f"the collection {generation.collection} is missing")
    return f"generation {generation.id} fits the settings"


async def _backlog(database: Database) -> list[Finding]:
    figures = await backlog(database)
    findings = []
    for target in Target:
        waiting, dead = figures.pending_of(target), figures.dead_of(target)
        age = figures.oldest_pending_seconds.get(target.value, 0.0)
        if waiting or dead:
            late = age > LATE_SECONDS
            advice = "is its worker running?" if late else ""
            if dead:
                advice = f"memplane outbox list --status dead --target {target.value}"
            detail = f"{waiting} waiting, the oldest for {age:.0f} s; {dead} dead"
            findings.append(Finding(f"{target.value} events", not late and not dead, detail, advice))
    return findings or [Finding("events", True, "none waits, none is dead")]


def add_to(app: typer.Typer) -> None:
    app.command()(doctor)
