"""`memplane reconcile TARGET`: prove that a projection equals the truth, or repair what does not."""

from __future__ import annotations

import asyncio
import contextlib
import signal as signals
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from memplane.cli.context import Context, connected, run_command
from memplane.cli.exit_codes import ExitCode
from memplane.cli.output import Output
from memplane.cli.processes import WorkerTarget
from memplane.errors import SettingsError
from memplane.outbox.events import Target
from memplane.reconcile import Mode, Progress, Report
from memplane.reconcile import reconcile as run_reconcile
from memplane.reconcile.report import ProgressCallback
from memplane.signal import Signal

SHOWN_SAMPLES = 20


def reconcile(
    context: typer.Context,
    target: Annotated[WorkerTarget, typer.Argument(help="The projection to compare with the truth.")],
    *,
    full: Annotated[bool, typer.Option("--full", help="Compare everything (the default).")] = True,
    audit: Annotated[bool, typer.Option("--audit", help="Report only (the default).")] = False,
    repair: Annotated[bool, typer.Option("--repair", help="Also insert repair events for the workers.")] = False,
    allow_orphans: Annotated[
        bool, typer.Option(help="Repair any number of objects that have no memory; else a run with too many stops.")
    ] = False,
) -> None:
    """Compare a projection with the truth: missing, stale, orphan and foreign-version objects, nodes and edges.

    Exit code 0: equal, or repaired. 6: an audit found differences.
    """

    async def command(ours: Context) -> int:
        if audit and repair:
            raise SettingsError("give one of --audit and --repair")
        output = ours.output()
        mode: Mode = "repair" if repair else "audit"
        async with connected(ours.settings()) as connections:
            projection = connections.projection(Target(target.value))
            try:
                with _interruptible() as signal, _progress(output, target.value) as progress:
                    report = await run_reconcile(
                        connections.database,
                        projection,
                        mode=mode,
                        kind="full",
                        signal=signal,
                        progress=progress,
                        orphan_fraction=1.0 if allow_orphans else None,
                    )
            finally:
                await projection.close()
        _print(output, report)
        return _exit_code(report)

    run_command(context, command)


def _exit_code(report: Report) -> int:
    if report.state == "cancelled":
        return 130
    if report.state != "completed":
        return ExitCode.FAILED
    return ExitCode.OK if report.clean or report.mode == "repair" else ExitCode.FOUND


@contextlib.contextmanager
def _interruptible() -> Iterator[Signal]:
    """Ctrl-C and SIGTERM end the run in good order: what was found so far is recorded."""
    signal, loop = Signal(), asyncio.get_running_loop()
    for number in (signals.SIGINT, signals.SIGTERM):
        loop.add_signal_handler(number, signal.abort)
    try:
        yield signal
    finally:
        for number in (signals.SIGINT, signals.SIGTERM):
            loop.remove_signal_handler(number)


@contextlib.contextmanager
def _progress(output: Output, target: str) -> Iterator[ProgressCallback | None]:
    if output.as_json or not output.errors.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=output.errors, transient=True) as bar:
        task = bar.add_task(f"comparing {target}", total=None)

        def update(progress: Progress) -> None:
            found = f"comparing {target}, {progress.mismatches} differences"
            bar.update(task, completed=progress.scanned, total=max(progress.total, progress.scanned), description=found)

        yield update


def _print(output: Output, report: Report) -> None:
    if output.as_json:
        output.document(asdict(report))
        return
    output.say(f"{report.target.value}: run {report.run_id} {report.state}, {report.scanned} memories compared.")
    if report.error:
        output.error(report.error)
    if report.clean:
        output.say("It equals the truth.")
        return
    kinds = sorted(set(report.mismatches) | set(report.repaired))
    output.table(
        ["difference", "found", "repairs"],
        [[kind, report.mismatches.get(kind, 0), report.repaired.get(kind, 0)] for kind in kinds],
        empty="",
    )
    output.table(
        ["memory", "difference", "detail"],
        [[sample.memory_id, sample.type, sample.detail] for sample in report.samples[:SHOWN_SAMPLES]],
        empty="",
    )


def add_to(app: typer.Typer) -> None:
    app.command()(reconcile)
