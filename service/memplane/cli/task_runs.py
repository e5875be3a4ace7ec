"""What the commands of `memplane recovery` share: their options, the tasks' store, and a runner over it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from memplane.cli.context import Context, connected, run_command
from memplane.cli.interrupts import interruptible
from memplane.contracts import Scope
from memplane.errors import SettingsError
from memplane.recovery import JobStore, RecoveryStore
from memplane.recovery.leases import LEASE_SECONDS
from memplane.recovery.postgres_jobs import PostgresJobs
from memplane.recovery.runner import JobRunner
from memplane.recovery.sqlite_jobs import SqliteJobs
from memplane.runtime import create_runtime
from memplane.signal import Signal
from memplane.workers import OpenAIChatProvider, create_context_worker, create_infer_worker, create_interaction_worker


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
class Run:
    """What running tasks needs."""

    folder: Path
    origin: str
    model_url: str
    model: str
    key_file: Path | None
    sqlite: bool
    flow: Flow
    lease_seconds: float
    scope: Scope | None = None
    """owner of new tasks; None: everybody's tasks are run, none is created"""


@dataclass(frozen=True, slots=True)
class Running:
    """A runner and its store, open until the command ends. `stopped` aborts on SIGTERM and Ctrl-C."""

    store: RecoveryStore
    runner: JobRunner
    stopped: Signal


def takes_run(command: Callable[..., None]) -> Callable[..., None]:
    """A command that has the options of `_run_of`, and gets what they say as its parameter `run`."""
    options = inspect.signature(_run_of, eval_str=True).parameters
    own = dict(inspect.signature(command, eval_str=True).parameters)
    del own["run"]

    @functools.wraps(command)
    def with_options(**given: Any) -> None:
        run = _run_of(**{name: given.pop(name) for name in options})
        command(**given, run=run)

    shown = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in (*own.values(), *options.values())]
    with_options.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    with_options.__annotations__ = {one.name: one.annotation for one in shown}
    return with_options


def _run_of(
    *,
    folder: Folder,
    service: Origin,
    model_url: ModelUrl,
    model: ModelName,
    key_file: KeyFile = None,
    sqlite: Sqlite = False,
    flow: FlowOption = Flow.COMPENSATION,
    lease_seconds: Lease = LEASE_SECONDS,
) -> Run:
    return Run(folder, service, model_url, model, key_file, sqlite, flow, lease_seconds)


def with_runner(context: typer.Context, run: Run, work: Callable[[Context, Running], Awaitable[int | None]]) -> None:
    """A command that runs tasks; ends the process with the code that `work` gives."""

    async def command(ours: Context) -> int | None:
        with interruptible() as stopped:
            async with _runner(ours, run) as (store, runner):
                return await work(ours, Running(store, runner, stopped))

    run_command(context, command)


def with_jobs(
    context: typer.Context,
    folder: Path | None,
    *,
    sqlite: bool,
    work: Callable[[Context, JobStore], Awaitable[int | None]],
) -> None:
    """A command that reads or changes saved tasks."""

    async def command(ours: Context) -> int | None:
        async with _jobs(ours, folder, sqlite=sqlite) as jobs:
            return await work(ours, jobs)

    run_command(context, command)


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
async def _runner(ours: Context, run: Run) -> AsyncIterator[tuple[RecoveryStore, JobRunner]]:
    async with AsyncExitStack() as stack:
        jobs = await stack.enter_async_context(_jobs(ours, run.folder, sqlite=run.sqlite, scope=run.scope))
        store = RecoveryStore(run.folder, run.origin, jobs=jobs)
        stack.push_async_callback(store.close)
        provider = OpenAIChatProvider(base_url=run.model_url, api_key=_key(run.key_file))
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
        model = {"provider": "openai", "model": run.model}
        yield store, JobRunner(jobs, runtime, model, flow=run.flow.value, lease_seconds=run.lease_seconds)


def _key(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise SettingsError(f"the key file cannot be read: {error.strerror}") from None
