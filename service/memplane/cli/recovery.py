"""`memplane recovery serve|run|resume|decide|show|list`: saved tasks, who decides about them, what goes on with them.

Tasks are in PostgreSQL (the settings' database), or with `--sqlite` in `tasks.sqlite` of the task folder.
"""

from __future__ import annotations

import getpass
from dataclasses import replace
from enum import StrEnum
from typing import Annotated, Any

import typer

from memplane.cli.context import Context
from memplane.cli.exit_codes import ExitCode
from memplane.cli.task_runs import (
    OptionalFolder,
    Run,
    Running,
    Sqlite,
    TaskId,
    takes_run,
    with_jobs,
    with_runner,
)
from memplane.contracts import Scope
from memplane.recovery import JobStore, RecoveryError, RecoveryStore, documents
from memplane.recovery.documents import Job
from memplane.recovery.runner import STUCK, Ran
from memplane.recovery.runner import serve as serve_jobs

app = typer.Typer(help="Durable tasks: run them, resume what was interrupted, decide about what waits for a person.")


@app.command()
@takes_run
def run(
    context: typer.Context,
    task: TaskId,
    *,
    approval: Annotated[bool, typer.Option("--requires-approval", help="A new task waits for a person.")] = False,
    tenant: Annotated[str, typer.Option(help="Whose task it is (PostgreSQL).")] = "default",
    user: Annotated[str, typer.Option(help="Whose task it is (PostgreSQL).")] = "default",
    run: Run,
) -> None:
    """Create the task for FOLDER/<id>.txt unless it exists, and run it as far as it goes."""

    async def work(ours: Context, now: Running) -> int:
        if not await _known(now.store, task):
            await now.store.create(task, approval)
        return _tell(ours, [await now.runner.run(task, signal=now.stopped)])

    with_runner(context, replace(run, scope=Scope(tenant, user)), work)


async def _known(store: RecoveryStore, task: str) -> bool:
    try:
        await store.job(task)
    except RecoveryError as error:
        if str(error) == "Unknown task":
            return False
        raise
    return True


@app.command()
@takes_run
def resume(
    context: typer.Context,
    task: Annotated[str | None, typer.Argument(help="The task's id.")] = None,
    *,
    stuck: Annotated[bool, typer.Option("--stuck", help="All uncertain and timed-out tasks.")] = False,
    run: Run,
) -> None:
    """Go on with one task, or with all that are stuck. What was done is found, and not done twice."""
    if (task is None) != stuck:
        raise typer.BadParameter("name a task, or give --stuck")

    async def work(ours: Context, now: Running) -> int:
        if task is not None:
            return _tell(ours, [await now.runner.run(task, signal=now.stopped)])
        return _tell(ours, await now.runner.run_all(STUCK, signal=now.stopped))

    with_runner(context, run, work)


@app.command()
@takes_run
def serve(
    context: typer.Context,
    *,
    poll_seconds: Annotated[float, typer.Option(min=0.1, help="How often open tasks are looked for.")] = 5.0,
    stuck_seconds: Annotated[float, typer.Option(min=1, help="How often stuck tasks are tried again.")] = 60.0,
    run: Run,
) -> None:
    """Run open and stuck tasks until SIGTERM or Ctrl-C. Any number of these processes may share PostgreSQL."""

    async def work(_: Context, now: Running) -> None:
        await serve_jobs(now.runner, now.stopped, poll_seconds=poll_seconds, stuck_seconds=stuck_seconds)

    with_runner(context, run, work)


class Decision(StrEnum):
    APPROVE = "approve"
    REJECT = "reject"


@app.command()
def decide(
    context: typer.Context,
    task: TaskId,
    decision: Annotated[Decision, typer.Argument(help="approve or reject.")],
    *,
    sqlite: Sqlite = False,
    folder: OptionalFolder = None,
) -> None:
    """Decide about a paused task, as the operating system's user. The HTTP API does so with an authenticated name."""

    async def work(ours: Context, jobs: JobStore) -> int:
        actor, task_id = f"cli:{getpass.getuser()}", documents.task_id(task)
        job = await jobs.change(task_id, "decided", lambda one: documents.decided(one, decision.value, actor))
        return _tell(ours, [Ran(task, job["stage"])])

    with_jobs(context, folder, sqlite=sqlite, work=work)


@app.command()
def show(
    context: typer.Context,
    task: TaskId,
    *,
    history: Annotated[bool, typer.Option("--history", help="Every change and noted call, oldest first.")] = False,
    sqlite: Sqlite = False,
    folder: OptionalFolder = None,
) -> None:
    """Show a task's document, or its history."""

    async def work(ours: Context, jobs: JobStore) -> None:
        if not history:
            _show(ours, await jobs.load(task))
            return
        events = await jobs.events(task)
        if ours.as_json:
            ours.output().document([{"kind": event.kind, "data": event.data} for event in events])
            return
        rows = [[one.kind, _revision(one.data)] for one in events]
        ours.output().table(["event", "revision"], rows, empty="")

    with_jobs(context, folder, sqlite=sqlite, work=work)


def _revision(data: Any) -> object:
    return data.get("revision") if isinstance(data, dict) else None


def _show(ours: Context, job: Job) -> None:
    if ours.as_json:
        ours.output().document(job)
    else:
        ours.output().table(["field", "value"], [[name, value] for name, value in job.items()], empty="")


@app.command("list")
def list_(
    context: typer.Context,
    *,
    stage: Annotated[list[str] | None, typer.Option(help="Only tasks at this stage; repeat it.")] = None,
    after: Annotated[str, typer.Option(help="Only ids above this one: the next page.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Tasks at most.")] = 100,
    sqlite: Sqlite = False,
    folder: OptionalFolder = None,
) -> None:
    """List tasks by id."""

    async def work(ours: Context, jobs: JobStore) -> None:
        found = await jobs.jobs(stages=stage or (), limit=limit, after=after)
        if ours.as_json:
            ours.output().document(list(found))
            return
        rows = [[job["id"], job["stage"], job["revision"], job["error"]] for job in found]
        ours.output().table(["task", "stage", "revision", "error"], rows, empty="There are no such tasks.")

    with_jobs(context, folder, sqlite=sqlite, work=work)


def _tell(ours: Context, all_ran: list[Ran]) -> int:
    output = ours.output()
    if ours.as_json:
        output.document([{"id": r.id, "stage": r.stage, "error": r.error, "busy": r.busy} for r in all_ran])
    else:
        rows = [[r.id, r.stage, "another process runs it" if r.busy else r.error] for r in all_ran]
        output.table(["task", "stage", "note"], rows, empty="There is nothing to do.")
    return ExitCode.FAILED if any(r.error for r in all_ran) else ExitCode.OK
