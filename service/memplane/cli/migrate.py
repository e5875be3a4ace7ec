"""`memplane migrate`: the schema of this release, on an empty database or on a table that is already there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import typer

from memplane.adoption.finish import StillWriting, finish
from memplane.adoption.plan import Plan
from memplane.adoption.run import Adoption, adopt, look
from memplane.adoption.state import State
from memplane.cli.context import Context, connected, run_command
from memplane.cli.exit_codes import ExitCode
from memplane.cli.interrupts import interruptible
from memplane.cli.output import Output
from memplane.cli.progress import shown
from memplane.errors import SettingsError
from memplane.schema.identity import read_identity
from memplane.schema.migrate import check
from memplane.schema.migrate import migrate as apply

INTERRUPTED = 130

_Sql = Callable[[str], str]
"""Puts the schema's name into a statement."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    adopt: bool
    plan: bool
    finish: bool

    def check(self) -> None:
        if self.adopt and self.finish:
            raise SettingsError("give one of --adopt and --finish-adoption")
        if self.plan and not self.adopt:
            raise SettingsError("--plan belongs to --adopt")


def migrate(
    context: typer.Context,
    adopt_table: Annotated[
        bool,
        typer.Option("--adopt", help="Take over a long_term_memory that another application made and still writes."),
    ] = False,
    plan: Annotated[bool, typer.Option("--plan", help="With --adopt: print what would be done, and sizes.")] = False,
    finish_adoption: Annotated[
        bool, typer.Option("--finish-adoption", help="The old application is gone: take the trigger away.")
    ] = False,
) -> None:
    """Bring the database's schema to this release. Safe to repeat and to run in parallel; never goes back.

    With --adopt an existing table becomes the truth in place, while its application goes on writing; the settings
    `adoption.columns` say which column is what. Safe to end and to repeat at any point.

    Exit code 6: --finish-adoption found that the old application has written a moment ago.
    """
    wanted = _Wanted(adopt_table, plan, finish_adoption)

    async def command(ours: Context) -> int:
        wanted.check()
        if wanted.plan:
            return await _plan(ours)
        if wanted.adopt or wanted.finish:
            return await _adoption(ours, finishing=wanted.finish)
        return await _migrate(ours)

    run_command(context, command)


async def _migrate(ours: Context) -> int:
    output = ours.output()
    async with connected(ours.settings()) as connections:
        applied = await apply(connections.database)
        level = await check(connections.database)
        backend = await read_identity(connections.database)
    if ours.as_json:
        output.document({"applied": applied, "schemaVersion": level, "backendId": backend})
        return ExitCode.OK
    for name in applied:
        output.say(f"applied {name}")
    output.say(f"The schema is at level {level}; this backend is {backend}.")
    return ExitCode.OK


async def _plan(ours: Context) -> int:
    output, settings = ours.output(), ours.settings()
    async with connected(settings) as connections:
        found = await look(connections.database, settings.adoption, connections.targets)
        if isinstance(found, State):
            _print_state(output, found)
        else:
            _print_plan(output, found, connections.database.sql)
    return ExitCode.OK


async def _adoption(ours: Context, *, finishing: bool) -> int:
    output, settings = ours.output(), ours.settings()
    work = finish if finishing else adopt
    async with connected(settings) as connections:
        with interruptible() as signal, shown(output, "adopting") as show:
            try:
                state = await work(
                    connections.database, settings.adoption, targets=connections.targets, signal=signal, show=show
                )
            except StillWriting as found:
                output.error(str(found))
                return ExitCode.FOUND
    if state is None:
        output.error("stopped; run it again to go on")
        return INTERRUPTED
    _print_state(output, state)
    return ExitCode.OK


def _print_state(output: Output, state: State) -> None:
    if output.as_json:
        output.document(
            {
                "stage": state.stage,
                "backfilled": state.done,
                "startedAt": state.started_at,
                "adoptedAt": state.adopted_at,
                "finishedAt": state.finished_at,
                "capturedAt": state.captured_at,
            }
        )
        return
    if state.stage == "finished":
        output.say("The adoption is finished: memplane alone writes the table.")
        return
    output.say(f"The table is adopted: {state.done} rows backfilled. Changes of the old application are captured.")
    if state.captured_at is not None:
        output.say(f"The last one was hashed at {state.captured_at.isoformat(timespec='seconds')}.")


def _print_plan(output: Output, adoption: Adoption, sql: _Sql) -> None:
    table, plan = adoption.table, adoption.plan
    if output.as_json:
        output.document(
            {
                "rows": table.rows,
                "tableBytes": table.heap_bytes,
                "totalBytes": table.bytes,
                "notes": list(plan.notes),
                "statements": [sql(statement) for statement in _statements(plan)],
            }
        )
        return
    megabytes = 2**20
    output.say(
        f"-- {table.schema}.long_term_memory: about {table.rows} rows, {table.heap_bytes / megabytes:.0f} MiB, "
        f"{table.bytes / megabytes:.0f} MiB with its indexes."
    )
    output.say("-- Each row is updated once, so expect the table to double until VACUUM has made the room free again.")
    for note in plan.notes:
        output.say(f"-- {note}")
    for statement in _statements(plan):
        output.say(sql(statement) + ";")


def _statements(plan: Plan) -> list[str]:
    return [
        "-- 1. in one transaction, with a short lock on the table at its end\nBEGIN",
        *plan.prepare,
        plan.alter,
        *plan.after,
        "COMMIT",
        "-- 2. the backfill, in batches\n-- 3. beside writers",
        *(index.sql for index in plan.indexes),
        *plan.enforce,
    ]


def add_to(app: typer.Typer) -> None:
    app.command()(migrate)
