"""`memplane outbox list|show|replay|discard`: what waits, what failed for good, and what to do about it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from memplane.api.admin.models import OutboxEvent, event_model
from memplane.cli.context import Context, connected, run_command
from memplane.cli.exit_codes import ExitCode
from memplane.outbox import admin
from memplane.outbox.events import Target
from memplane.schema.database import Database

PAGE = 1000

app = typer.Typer(help="List, show, replay and discard the events that carry changes to the projections.")


class StatusOption(StrEnum):
    PENDING = "pending"
    PROCESSING = "processing"
    PROCESSED = "processed"
    DEAD = "dead"


TargetOption = Annotated[Target | None, typer.Option(help="Only events of this target.")]
Ids = Annotated[list[int] | None, typer.Argument(help="Ids of dead events.")]
AllDead = Annotated[bool, typer.Option("--all-dead", help="Every dead event (of --target, if given).")]


@app.command("list")
def list_(
    context: typer.Context,
    *,
    target: TargetOption = None,
    status: Annotated[StatusOption | None, typer.Option(help="Only events in this status.")] = None,
    memory: Annotated[int | None, typer.Option(min=1, help="Only events of this memory.")] = None,
    before: Annotated[int | None, typer.Option(min=1, help="Only events with a smaller id: the next page.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=PAGE, help="Events at most.")] = 50,
) -> None:
    """List events, newest first."""

    async def command(ours: Context) -> None:
        async with connected(ours.settings()) as connections:
            found = await admin.list_events(
                connections.database,
                target=target,
                status=None if status is None else status.value,
                memory_id=memory,
                before=before,
                limit=limit,
            )
        _print(ours, [event_model(record) for record in found])

    run_command(context, command)


def _print(ours: Context, events: list[OutboxEvent]) -> None:
    output = ours.output()
    if ours.as_json:
        output.document(events)
        return
    output.table(
        ["id", "target", "event", "memory", "version", "status", "attempts", "created", "last error"],
        (
            [
                event.id,
                event.target,
                event.event_type,
                event.memory_id,
                event.version,
                event.status + (" (superseded)" if event.superseded_by is not None else ""),
                event.attempts,
                event.created_at.astimezone().strftime("%Y-%m-%d %H:%M:%S"),
                event.last_error,
            ]
            for event in events
        ),
        empty="There are no such events.",
    )


@app.command()
def show(context: typer.Context, event: Annotated[int, typer.Argument(min=1, help="Its id.")]) -> None:
    """Show one event with everything that is known about it."""

    async def command(ours: Context) -> int:
        output = ours.output()
        async with connected(ours.settings()) as connections:
            found = await admin.inspect(connections.database, event)
        if found is None:
            output.error(f"there is no event {event}")
            return ExitCode.NOT_FOUND
        shown = event_model(found)
        if ours.as_json:
            output.document(shown)
        else:
            fields = shown.model_dump(mode="json")
            output.table(["field", "value"], [[name, value] for name, value in fields.items()], empty="")
        return ExitCode.OK

    run_command(context, command)


@app.command()
def replay(context: typer.Context, events: Ids = None, all_dead: AllDead = False, target: TargetOption = None) -> None:
    """Give dead events a new set of attempts. An event that a newer one has overtaken ends as superseded."""

    async def command(ours: Context) -> int:
        async with connected(ours.settings()) as connections:
            ids = await _chosen(connections.database, events, all_dead=all_dead, target=target)
            fates = await admin.replay(connections.database, ids)
        output = ours.output()
        if ours.as_json:
            output.document({"replayed": {str(event): fate.value for event, fate in sorted(fates.items())}})
        else:
            output.say(f"{len(fates)} of {len(ids)} events were dead and are replayed.")
        return ExitCode.OK if fates or not ids else ExitCode.NOT_FOUND

    run_command(context, command)


@app.command()
def discard(context: typer.Context, events: Ids = None, all_dead: AllDead = False, target: TargetOption = None) -> None:
    """Give dead events up for good. What they leave different, the next full reconciliation finds."""

    async def command(ours: Context) -> int:
        async with connected(ours.settings()) as connections:
            ids = await _chosen(connections.database, events, all_dead=all_dead, target=target)
            gone = await admin.discard(connections.database, ids)
        output = ours.output()
        if ours.as_json:
            output.document({"discarded": sorted(gone)})
        else:
            output.say(f"{len(gone)} of {len(ids)} events were dead and are discarded.")
        return ExitCode.OK if gone or not ids else ExitCode.NOT_FOUND

    run_command(context, command)


async def _chosen(database: Database, events: list[int] | None, *, all_dead: bool, target: Target | None) -> list[int]:
    if bool(events) == all_dead:
        raise typer.BadParameter("name events by their ids, or give --all-dead")
    if events:
        return events
    ids: list[int] = []
    while True:
        before = ids[-1] if ids else None
        page = await admin.list_events(database, status="dead", target=target, before=before, limit=PAGE)
        ids += [record.id for record in page]
        if len(page) < PAGE:
            return ids
