"""`memplane migrate`."""

from __future__ import annotations

import typer

from memplane.cli.context import Context, connected, run_command
from memplane.schema.identity import read_identity
from memplane.schema.migrate import check
from memplane.schema.migrate import migrate as apply


def migrate(context: typer.Context) -> None:
    """Bring the database's schema to this release. Safe to repeat and to run in parallel; never goes back."""

    async def command(ours: Context) -> None:
        output = ours.output()
        async with connected(ours.settings()) as connections:
            applied = await apply(connections.database)
            level = await check(connections.database)
            backend = await read_identity(connections.database)
        if ours.as_json:
            output.document({"applied": applied, "schemaVersion": level, "backendId": backend})
            return
        for name in applied:
            output.say(f"applied {name}")
        output.say(f"The schema is at level {level}; this backend is {backend}.")

    run_command(context, command)


def add_to(app: typer.Typer) -> None:
    app.command()(migrate)
