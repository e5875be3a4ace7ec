"""`memplane recovery serve|run|resume|decide|show|list`: saved tasks, who decides about them, what goes on with them.

Tasks are in PostgreSQL (the settings' database), or with `--sqlite` in `tasks.sqlite` of the task folder.
"""

from __future__ import annotations

import getpass
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from memplane.cli.context import Context, connected, run_command
from memplane.cli.exit_codes import ExitCode
from memplane.cli.until_stopped import stop_signal
from memplane.contracts import Scope
from memplane.errors import SettingsError
from memplane.recovery import JobStore, RecoveryError, RecoveryStore
from memplane.recovery.documents import Job
from memplane.recovery.leases import LEASE_SECONDS
from memplane.recovery.postgres_jobs import PostgresJobs
from memplane.recovery.runner import STUCK, JobRunner, Ran
from memplane.recovery.runner import serve as serve_jobs
from memplane.recovery.sqlite_jobs import SqliteJobs
from memplane.runtime import create_runtime
from memplane.workers import OpenAIChatProvider, create_context_worker, create_infer_worker, create_interaction_worker

app = typer.Typer(help="Durable tasks: run them, resume what was interrupted, decide about what waits for a person.")


class Flow(StrEnum):
    """The names of `FLOWS`."""

    RETRY = "retry"
    FALLBACK = "fallback"
    TIMEOUT = "timeout"
    CHECKPOINT = "checkpoint"
    COMPENSATION = "compensation"
    SIDE_EFFECT_CHECK = "side-effect-check"


Folder = Annotated[Path, typer.Option(help="The task folder: sources <id>.txt, results/.")]
Origin = Annotated[str, typer.Option(help="Origin of the fulfilment service.")]
ModelUrl = Annotated[str, typer.Option(help="Base URL of an OpenAI-compatible model endpoint.")]
ModelName = Annotated[str, typer.Option(help="Name of the model.")]
KeyFile = Annotated[Path | None, typer.Option(help="File with the model endpoint's API key.")]
Sqlite = Annotated[bool, typer.Option("--sqlite", help="Tasks are in the folder's tasks.sqlite, not in PostgreSQL.")]
FlowOption = Annotated[Flow, typer.Option(help="How tasks are run to their end.")]
TaskId = Annotated[str, typer.Argument(help="The task's id.")]
OptionalFolder = Annotated[Path | None, typer.Option(help="The task folder, with --sqlite.")]
Lease = Annotated[float, typer.Option(min=1, help="Seconds after which a killed process loses its task.")]


@dataclass(frozen=True, slots=True)
class Where:
    """What running a task needs."""

    folder: Path
    origin: str
    model_url: str
    model: str
    key_file: Path | None
    sqlite: bool
    scope: Scope | None = None
    """owner of new tasks; None: everybody's tasks are run, none is created"""


@asynccontextmanager
async def _jobs(
    ours: Context, folder: Path | None, *, sqlite: bool, scope: Scope | None = None
) -> AsyncIterator[JobStore]:
    if sqlite:
        if folder is None:
            raise SettingsError("--sqlite needs --folder")
        store = SqliteJobs(folder / "tasks.sqlite")
        try:
            yield store
        finally:
            await store.close()
        return
    async with connected(ours.settings()) as connections:
        database = connections.database
        yield PostgresJobs(database) if scope is None else PostgresJobs.of(database, scope)


@asynccontextmanager
async def _runner(
    ours: Context, where: Where, flow: str, seconds: float
) -> AsyncIterator[tuple[RecoveryStore, JobRunner]]:
    async with AsyncExitStack() as stack:
        jobs = await stack.enter_async_context(_jobs(ours, where.folder, sqlite=where.sqlite, scope=where.scope))
        store = RecoveryStore(where.folder, where.origin, jobs=jobs)
        stack.push_async_callback(store.close)
        provider = OpenAIChatProvider(base_url=where.model_url, api_key=_key(where.key_file))
        stack.push_async_callback(provider.close)
        runtime = create_runtime(
            sandbox={"tools": [tool.name for tool in store.tools], "network": [store.origin, provider.origin]},
            workers=[
                create_context_worker(),
                create_infer_worker(providers={"openai": provider}),
                create_interaction_worker(tools=list(store.tools)),
            ],
        )
        stack.push_async_callback(runtime.close)
        model = {"provider": "openai", "model": where.model}
        yield store, JobRunner(jobs, runtime, model, flow=flow, lease_seconds=seconds)


def _key(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise SettingsError(f"the key file cannot be read: {error.strerror}") from None


@app.command()
def run(
    context: typer.Context,
    task: TaskId,
    *,
    folder: Folder,
    service: Origin,
    model_url: ModelUrl,
    model: ModelName,
    key_file: KeyFile = None,
    sqlite: Sqlite = False,
    flow: FlowOption = Flow.COMPENSATION,
    approval: Annotated[bool, typer.Option("--requires-approval", help="A new task waits for a person.")] = False,
    tenant: Annotated[str, typer.Option(help="Whose task it is (PostgreSQL).")] = "default",
    user: Annotated[str, typer.Option(help="Whose task it is (PostgreSQL).")] = "default",
    lease_seconds: Lease = LEASE_SECONDS,
) -> None:
    """Create the task for FOLDER/<id>.txt unless it exists, and run it as far as it goes."""
    where = Where(folder, service, model_url, model, key_file, sqlite, Scope(tenant, user))

    async def command(ours: Context) -> int:
        async with _runner(ours, where, flow.value, lease_seconds) as (store, runner):
            if not await _known(store, task):
                await store.create(task, approval)
            return _tell(ours, [await runner.run(task, signal=stop_signal())])

    run_command(context, command)


async def _known(store: RecoveryStore, task: str) -> bool:
    try:
        await store.job(task)
    except RecoveryError as error:
        if str(error) == "Unknown task":
            return False
        raise
    return True


@app.command()
def resume(
    context: typer.Context,
    task: Annotated[str | None, typer.Argument(help="The task's id.")] = None,
    *,
    stuck: Annotated[bool, typer.Option("--stuck", help="All uncertain and timed-out tasks.")] = False,
    folder: Folder,
    service: Origin,
    model_url: ModelUrl,
    model: ModelName,
    key_file: KeyFile = None,
    sqlite: Sqlite = False,
    flow: FlowOption = Flow.COMPENSATION,
    lease_seconds: Lease = LEASE_SECONDS,
) -> None:
    """Go on with one task, or with all that are stuck. What was done is found, and not done twice."""
    where = Where(folder, service, model_url, model, key_file, sqlite)

    async def command(ours: Context) -> int:
        if (task is None) != stuck:
            raise typer.BadParameter("name a task, or give --stuck")
        async with _runner(ours, where, flow.value, lease_seconds) as (_, runner):
            if task is not None:
                return _tell(ours, [await runner.run(task, signal=stop_signal())])
            return _tell(ours, await runner.run_all(STUCK, signal=stop_signal()))

    run_command(context, command)


@app.command()
def serve(
    context: typer.Context,
    *,
    folder: Folder,
    service: Origin,
    model_url: ModelUrl,
    model: ModelName,
    key_file: KeyFile = None,
    sqlite: Sqlite = False,
    flow: FlowOption = Flow.COMPENSATION,
    poll_seconds: Annotated[float, typer.Option(min=0.1, help="How often open tasks are looked for.")] = 5.0,
    stuck_seconds: Annotated[float, typer.Option(min=1, help="How often stuck tasks are tried again.")] = 60.0,
    lease_seconds: Lease = LEASE_SECONDS,
) -> None:
    """Run open and stuck tasks until SIGTERM or Ctrl-C. Any number of these processes may share PostgreSQL."""
    where = Where(folder, service, model_url, model, key_file, sqlite)

    async def command(ours: Context) -> None:
        stopped = stop_signal()
        async with _runner(ours, where, flow.value, lease_seconds) as (_, runner):
            await serve_jobs(runner, stopped, poll_seconds=poll_seconds, stuck_seconds=stuck_seconds)

    run_command(context, command)


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
    from memplane.recovery import documents

    async def command(ours: Context) -> int:
        async with _jobs(ours, folder, sqlite=sqlite) as jobs:
            actor = f"cli:{getpass.getuser()}"
            task_id = documents.task_id(task)
            job = await jobs.change(task_id, "decided", lambda one: documents.decided(one, decision.value, actor))
        return _tell(ours, [Ran(task, job["stage"])])

    run_command(context, command)


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

    async def command(ours: Context) -> int:
        async with _jobs(ours, folder, sqlite=sqlite) as jobs:
            output = ours.output()
            if not history:
                document: Job = await jobs.load(task)
                _show(ours, document)
                return ExitCode.OK
            events = await jobs.events(task)
        if ours.as_json:
            output.document([{"kind": event.kind, "data": event.data} for event in events])
        else:
            output.table(["event", "revision"], [[one.kind, _revision(one.data)] for one in events], empty="")
        return ExitCode.OK

    run_command(context, command)


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

    async def command(ours: Context) -> None:
        async with _jobs(ours, folder, sqlite=sqlite) as jobs:
            found = await jobs.jobs(stages=stage or (), limit=limit, after=after)
        output = ours.output()
        if ours.as_json:
            output.document(list(found))
            return
        rows = [[job["id"], job["stage"], job["revision"], job["error"]] for job in found]
        output.table(["task", "stage", "revision", "error"], rows, empty="There are no such tasks.")

    run_command(context, command)


def _tell(ours: Context, all_ran: list[Ran]) -> int:
    output = ours.output()
    if ours.as_json:
        output.document([{"id": r.id, "stage": r.stage, "error": r.error, "busy": r.busy} for r in all_ran])
    else:
        rows = [[r.id, r.stage, "another process runs it" if r.busy else r.error] for r in all_ran]
        output.table(["task", "stage", "note"], rows, empty="There is nothing to do.")
    return ExitCode.FAILED if any(r.error for r in all_ran) else ExitCode.OK
