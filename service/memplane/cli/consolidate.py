"""`memplane consolidate`: merge duplicates, let importance decay and time run out, or show what that would do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from enum import StrEnum
from typing import Annotated

import typer

from memplane.api.admin.consolidation_models import ConsolidationPlan, plan_model, report_model
from memplane.api.connections import Connections
from memplane.api.consolidating import job_of, require_postgres, writing_of
from memplane.cli.context import Context, connected, run_command
from memplane.cli.exit_codes import ExitCode
from memplane.cli.interrupts import interruptible
from memplane.cli.output import Output
from memplane.cli.progress import shown
from memplane.consolidation import Job, Report, consolidate, make_plan, scopes
from memplane.consolidation.snapshot import EVERYTHING
from memplane.contracts import Scope
from memplane.errors import MemplaneError, SettingsError
from memplane.signal import Signal

SHOWN_STEPS = 50


class RuleOption(StrEnum):
    EXACT = "exact"
    NEAR = "near"
    DECAY = "decay"
    EXPIRY = "expiry"
    POLICY = "policy"


class Failed(MemplaneError):  # noqa: N818 - reads as what became of the command
    """Windows were left after too many conflicts."""


def consolidate_command(
    context: typer.Context,
    *,
    show: Annotated[bool, typer.Option("--plan", help="Only show what would be done (the default).")] = False,
    do: Annotated[bool, typer.Option("--apply", help="Do it.")] = False,
    tenant: Annotated[str | None, typer.Option(help="Only memories of this tenant.")] = None,
    user: Annotated[str | None, typer.Option(help="Only memories of this user (with --tenant).")] = None,
    rule: Annotated[list[RuleOption] | None, typer.Option(help="Instead of consolidation.rules; repeatable.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")] = False,
) -> None:
    """Merge duplicates into one memory, let importance decay, delete what has expired.

    Nothing is done without a rule: name them with --rule, or in the settings (consolidation.rules). Every change is
    made like any other: with a version, with events, in transactions that are done wholly or not at all.
    """

    async def command(ours: Context) -> int:
        ours.as_json = ours.as_json or as_json
        output = ours.output()
        if show and do:
            raise SettingsError("give one of --plan and --apply")
        if user is not None and tenant is None:
            raise SettingsError("--user needs --tenant")
        async with connected(ours.settings()) as connections:
            require_postgres(connections)
            await connections.open_truth()
            job = job_of(connections, [one.value for one in rule or ()])
            if not job.rules:
                output.error("no rule is named: give --rule, or set consolidation.rules")
            with interruptible() as signal:
                chosen = _scopes(connections, tenant, user)
                return await (_apply if do else _plan)(output, connections, job, chosen, signal)

    run_command(context, command)


async def _scopes(connections: Connections, tenant: str | None, user: str | None) -> AsyncIterator[Scope]:
    if tenant is not None and user is not None:
        yield Scope(tenant, user)
        return
    async for scope in scopes(connections.database, tenant):
        yield scope


async def _plan(
    output: Output, connections: Connections, job: Job, chosen: AsyncIterator[Scope], signal: Signal
) -> int:
    found: list[ConsolidationPlan] = []
    async for scope in chosen:
        after: int | None = EVERYTHING
        while after is not None and not signal.aborted:
            made, after = await make_plan(connections.database, scope, job, after=after)
            if made.steps or made.skipped:
                found.append(plan_model(made, after))
    if output.as_json:
        output.document({"plans": found})
    else:
        _show(output, found)
    return 130 if signal.aborted else ExitCode.OK


def _show(output: Output, found: list[ConsolidationPlan]) -> None:
    rows: list[list[object]] = []
    for plan in found:
        for step in plan.steps:
            rows += [
                [plan.tenant, plan.user, one.memory_id, one.rule, one.superseded_by, one.reason] for one in step.deletes
            ]
            rows += [
                [plan.tenant, plan.user, one.memory_id, "update", None, one.reason]
                for one in step.updates
                if one.changes
            ]
    columns = ["tenant", "user", "memory", "what", "into", "why"]
    output.table(columns, rows[:SHOWN_STEPS], empty="There is nothing to consolidate.")
    if len(rows) > SHOWN_STEPS:
        output.say(f"… and {len(rows) - SHOWN_STEPS} more; --json shows all.")
    skipped = [[group.reason, ", ".join(group.memory_ids[:10])] for plan in found for group in plan.skipped]
    if skipped:
        output.table(["left alone because", "memories"], skipped[:SHOWN_STEPS], empty="")
    if rows:
        output.say("Nothing was changed. `memplane consolidate --apply` does it.")


async def _apply(
    output: Output, connections: Connections, job: Job, chosen: AsyncIterator[Scope], signal: Signal
) -> int:
    writing, report = writing_of(connections), Report()
    with shown(output, "consolidating", measured=False) as show:
        async for scope in chosen:
            if signal.aborted:
                report.cancelled = True
                break
            await consolidate(writing, scope, job, report=report, signal=signal, progress=lambda now: show(_doing(now)))
    if output.as_json:
        output.document(report_model(report))
    else:
        output.say(
            f"{report.scopes} users, {report.looked_at} memories: {report.superseded} merged into others, "
            f"{report.updated} rewritten, {report.expired} expired; {report.skipped} groups left alone."
        )
    if report.unfinished:
        output.error(f"{report.unfinished} windows were given up after too many concurrent changes: run it again")
        return ExitCode.FAILED
    return 130 if report.cancelled else ExitCode.OK


def _doing(report: Report) -> str:
    return f"consolidating user {report.scopes}: {report.looked_at} memories, {report.changed} changed"


def add_to(app: typer.Typer) -> None:
    app.command("consolidate")(consolidate_command)
