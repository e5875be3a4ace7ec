"""`memplane reconcile TARGET`: prove that a projection equals the truth, or repair what does not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Annotated

import typer

from memplane.cli.context import Context, connected, run_command
from memplane.cli.exit_codes import ExitCode
from memplane.cli.interrupts import interruptible
from memplane.cli.output import Output
from memplane.cli.progress import Show, shown
from memplane.cli.targets import WorkerTarget
from memplane.errors import SettingsError
from memplane.outbox.events import Target
from memplane.reconcile import Progress, Report
from memplane.reconcile import reconcile as run_reconcile
from memplane.reconcile.diff import Drift
from memplane.reconcile.listing import RunSummary, list_runs
from memplane.reconcile.report import ProgressCallback

SHOWN_SAMPLES = 20
GUIDE = "docs/reconciliation.md"


def reconcile(
    context: typer.Context,
    target: Annotated[WorkerTarget | None, typer.Argument(help="The projection to compare with the truth.")] = None,
    *,
    full: Annotated[bool, typer.Option("--full", help="Compare everything (the default).")] = False,
    incremental: Annotated[
        bool, typer.Option("--incremental", help="Compare what has changed since the last complete run.")
    ] = False,
    audit: Annotated[bool, typer.Option("--audit", help="Report only (the default).")] = False,
    repair: Annotated[bool, typer.Option("--repair", help="Also insert repair events for the workers.")] = False,
    allow_orphans: Annotated[
        bool, typer.Option(help="Repair any number of objects that have no memory; else a run with too many stops.")
    ] = False,
    resume: Annotated[
        bool, typer.Option(help="Take up a run of this kind that broke off, where it stopped; else begin a new one.")
    ] = True,
    runs: Annotated[bool, typer.Option("--runs", help="Show the last runs instead, of one target or of all.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Runs shown at most.")] = 20,
) -> None:
    """Compare a projection with the truth: missing, stale, orphan, edited and foreign objects, nodes and edges.

    A run that was killed or interrupted is taken up where it stopped, if it is not too old.
    Exit code 0: equal, or repaired. 6: an audit found differences.
    """
    if target is None and not runs:
        raise typer.BadParameter("name a TARGET, or ask for --runs", param_hint="TARGET")

    async def command(ours: Context) -> int:
        if audit and repair:
            raise SettingsError("give one of --audit and --repair")
        if full and incremental:
            raise SettingsError("give one of --full and --incremental")
        output, settings = ours.output(), ours.settings()
        async with connected(settings) as connections:
            if runs or target is None:
                name = None if target is None else target.value
                show_runs(output, await list_runs(connections.database, name, limit))
                return ExitCode.OK
            projection = connections.projection(Target(target.value))
            try:
                with interruptible() as signal, shown(output, f"comparing {target.value}") as show:
                    report = await run_reconcile(
                        connections.database,
                        projection,
                        mode="repair" if repair else "audit",
                        kind="incremental" if incremental else "full",
                        signal=signal,
                        progress=_telling(show, target.value),
                        orphan_fraction=1.0 if allow_orphans else None,
                        resume=resume,
                        settings=settings.reconcile,
                    )
            finally:
                await projection.close()
        _print(output, report)
        return _exit_code(report)

    run_command(context, command)


def show_runs(output: Output, found: Sequence[RunSummary]) -> None:
    """The runs as a table, or as JSON with their samples."""
    if output.as_json:
        output.document([asdict(run) for run in found])
        return
    output.table(
        ["run", "target", "kind", "mode", "state", "began", "ended", "compared", "found", "repairs", "note"],
        [
            [
                run.id,
                run.target,
                run.kind,
                run.mode,
                run.state,
                _moment(run.started_at),
                _moment(run.finished_at),
                run.scanned,
                _counts(run.mismatches),
                _counts(run.repaired),
                "; ".join(_notes(run)),
            ]
            for run in found
        ],
        empty="There is no run yet.",
    )


def _notes(run: RunSummary) -> Iterator[str]:
    if run.resumed:
        yield f"taken up {run.resumed} times"
    if run.reason:
        yield f"full: {run.reason}"
    if run.error:
        yield run.error


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items()))


def _moment(moment: datetime | None) -> str:
    return "" if moment is None else f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"


def _exit_code(report: Report) -> int:
    if report.state == "cancelled":
        return 130
    if report.state != "completed":
        return ExitCode.FAILED
    return ExitCode.OK if report.clean or report.mode == "repair" else ExitCode.FOUND


def _telling(show: Show, target: str) -> ProgressCallback:
    def tell(progress: Progress) -> None:
        show(f"comparing {target}, {progress.mismatches} differences", progress.scanned, progress.total)

    return tell


def _print(output: Output, report: Report) -> None:
    if output.as_json:
        output.document(asdict(report))
        return
    output.say(
        f"{report.target.value}: {report.kind} run {report.run_id} {report.state}, {report.scanned} memories compared."
    )
    if report.resumed:
        output.say("It had broken off and was taken up where it stopped.")
    if report.reason:
        output.say(f"Everything was compared: {report.reason}.")
    if report.unchecked:
        output.say(f"{report.unchecked} vectors could not be compared: no embedding of their text is stored.")
    if report.error:
        output.error(report.error)
    if report.clean:
        output.say("It equals the truth." if report.kind == "full" else "What has changed equals the truth.")
        return
    if report.mismatches.get(Drift.REPAIR_INEFFECTIVE):
        output.say(f"Some differences stay although they were repaired: see {GUIDE}.")
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
