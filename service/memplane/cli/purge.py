"""`memplane purge`: remove for good what is over: tombstones by three conditions, and what nobody needs any more."""

from __future__ import annotations

from typing import Annotated

import typer

from memplane.api.admin.consolidation_models import Purged, purge_model
from memplane.api.consolidating import require_postgres
from memplane.cli.context import Context, connected, run_command
from memplane.cli.exit_codes import ExitCode
from memplane.cli.interrupts import interruptible
from memplane.cli.output import Output
from memplane.cli.progress import shown
from memplane.purge import Verdict
from memplane.purge import purge as run_purge

MEANINGS = {
    Verdict.READY: "may go",
    Verdict.RETAINED: "their retention (purge.retention_seconds) has not passed",
    Verdict.UNFINISHED: "events of theirs wait or are in flight",
    Verdict.DEAD: "events of theirs were given up: `memplane outbox list --status dead`",
    Verdict.SHADOW: "a target is in Shadow mode",
    Verdict.NO_RUN: "no complete full reconciliation of every target since: `memplane reconcile TARGET --full`",
    Verdict.NAMED: "that reconciliation met them in a target: run another one",
}


def purge(
    context: typer.Context,
    *,
    dry_run: Annotated[bool, typer.Option(help="Change nothing; say what tombstones wait for.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")] = False,
) -> None:
    """Remove tombstones that no target holds any more, and what is past its retention.

    A tombstone goes when its events are processed, a full reconciliation of every target has not met it since, and its
    retention has passed. Besides: processed events, old reconciliation runs, embeddings that no memory uses.
    """

    async def command(ours: Context) -> int:
        ours.as_json = ours.as_json or as_json
        output = ours.output()
        async with connected(ours.settings()) as connections:
            require_postgres(connections)
            await connections.open_truth()
            with interruptible() as signal, shown(output, "purging", measured=False) as show:
                report = await run_purge(
                    connections.database,
                    connections.settings,
                    connections.targets,
                    dry_run=dry_run,
                    signal=signal,
                    progress=lambda kind, count: show(f"purging {kind}: {count} removed"),
                )
        outcome = purge_model(report)
        if output.as_json:
            output.document(outcome)
        else:
            _print(output, outcome)
        return 130 if report.cancelled else ExitCode.OK

    run_command(context, command)


def _print(output: Output, shown: Purged) -> None:
    if not shown.dry_run:
        removed = sorted(shown.removed.items())
        output.table(["removed", "rows"], removed, empty="There was nothing to remove.")
    waiting = [(count, MEANINGS[Verdict(verdict)]) for verdict, count in sorted(shown.tombstones.items())]
    if shown.dry_run or waiting:
        output.table(["tombstones", ""], waiting, empty="There are no tombstones.")


def add_to(app: typer.Typer) -> None:
    app.command()(purge)
