"""`RecoveryStore`: the tasks of one folder, the tools that flows use, and the person's decision.

Every tool goes through the sandbox: its name must be among the permitted tools, the service's origin among the
permitted network origins. Source: seed `004`, behaviours J-01 … J-14.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from memplane.recovery import documents, sources
from memplane.recovery.documents import KINDS, MAX_SOURCE_BYTES, Job, Kind, task_id
from memplane.recovery.errors import RecoveryError
from memplane.recovery.jobs import JobEvent, JobStore
from memplane.recovery.leases import owner_of
from memplane.recovery.probes import Probe, point_name, unprobed
from memplane.recovery.remote import Answer, ServiceClient, service_origin
from memplane.recovery.sqlite_jobs import SqliteJobs
from memplane.runtime.canonical import snapshot
from memplane.runtime.context import WorkerContext
from memplane.workers import Tool

Result = dict[str, Any]
Execute = Callable[[Mapping[str, Any], WorkerContext], Awaitable[Result]]


class RecoveryStore:
    """Tasks, their history and their tools.

    directory: holds `<id>.txt`, `tasks.sqlite` and `results/`; must exist. origin: of the fulfilment service.
    jobs: another place for the documents (PostgreSQL); default is `tasks.sqlite` in the directory.
    probe: for tests, see `probes`.
    """

    def __init__(
        self, directory: str | Path, origin: str, *, jobs: JobStore | None = None, probe: Probe = unprobed
    ) -> None:
        self.origin = service_origin(origin)
        self.directory = Path(directory)
        if not self.directory.is_dir():
            raise RecoveryError("The task folder does not exist")
        self.database: JobStore = jobs if jobs is not None else SqliteJobs(self.directory / "tasks.sqlite")
        self._client = ServiceClient(self.origin)
        self._probe = probe
        self.tools: tuple[Tool, ...] = tuple(
            Tool(name=name, execute=self._probed(name, execute), validate=_validated, effects=effects)
            for name, execute, effects in self._tools()
        )

    def _probed(self, name: str, execute: Execute) -> Execute:
        async def probed(arguments: Mapping[str, Any], ctx: WorkerContext) -> Result:
            point = point_name(name, arguments)
            self._probe(f"{point}:before")
            result = await execute(arguments, ctx)
            self._probe(f"{point}:after")
            return result

        return probed

    def _tools(self) -> Sequence[tuple[str, Execute, tuple[str, ...]]]:
        return (
            ("recovery_read", self._read, ()),
            ("recovery_source", self._source, ()),
            ("recovery_prepare", self._prepare, ("checkpoint",)),
            ("recovery_catalog", self._catalog, ("network", "checkpoint")),
            ("recovery_operation", self._operation, ("network",)),
            ("recovery_checkpoint", self._checkpoint, ("checkpoint",)),
            ("recovery_state", self._state, ("checkpoint",)),
            ("recovery_context", self._context, ("checkpoint",)),
            ("recovery_report", self._report, ("file",)),
        )

    async def create(self, job_id: str, requires_approval: bool = False) -> Job:
        """A queued task for `<id>.txt`. Raises `RecoveryError`: bad id, id taken, no source."""
        source = sources.read_source(self.directory, task_id(job_id))
        if source is None:
            raise RecoveryError("The task's source does not exist")
        job = documents.new_job(job_id, source.hash, requires_approval=requires_approval)
        await self.database.insert(job)
        return job

    async def job(self, job_id: str) -> Job:
        """The task. Raises `RecoveryError`: unknown, unsupported schema."""
        return await self.database.load(task_id(job_id))

    async def decide(self, job_id: str, decision: str, actor: str) -> Job:
        """Record a person's decision on a paused task. `actor` was authenticated by the application."""
        return await self._change_probed(
            task_id(job_id), "decided", lambda job: documents.decided(job, decision, actor)
        )

    async def events(self, job_id: str) -> Sequence[JobEvent]:
        """The task's history, oldest first."""
        return await self.database.events(task_id(job_id))

    async def close(self) -> None:
        """Close the database and the connections; after the runtime."""
        await self._client.close()
        await self.database.close()

    # Tools ------------------------------------------------------------------------------------------------------------

    async def _read(self, arguments: Mapping[str, Any], _: WorkerContext) -> Result:
        return _success(await self.job(arguments["id"]))

    async def _source(self, arguments: Mapping[str, Any], _: WorkerContext) -> Result:
        most = _integer(arguments, "maxBytes", 1, MAX_SOURCE_BYTES)
        job = await self.job(arguments["id"])
        source = sources.read_source(self.directory, job["id"])
        if source is None:
            return _failed("SOURCE_NOT_FOUND", "The source does not exist")
        await self._note(job["id"], "source-read", {"maxBytes": most, "bytes": source.size})
        if source.hash != job["sourceHash"]:
            return _failed("SOURCE_CHANGED", "The source is not the one the task was created for")
        if source.size > most:
            retryable = source.size <= MAX_SOURCE_BYTES
            result = _failed("SOURCE_TOO_LARGE", "The source exceeds the given size", retryable=retryable)
            return {**result, "metadata": {"requiredBytes": source.size}}
        if not source.text.strip():
            return _failed("EMPTY_SOURCE", "The source is empty")
        return _success({"text": source.text, "sourceHash": source.hash})

    async def _prepare(self, arguments: Mapping[str, Any], _: WorkerContext) -> Result:
        order, context = arguments.get("order"), snapshot(arguments.get("context"))
        source_hash = arguments.get("sourceHash")
        return await self._change(
            arguments, "prepared", lambda job: documents.prepared(job, order, context, source_hash)
        )

    async def _catalog(self, arguments: Mapping[str, Any], ctx: WorkerContext) -> Result:
        source = arguments.get("source")
        if source not in ("primary", "backup"):
            raise RecoveryError("A catalog source is primary or backup")
        job = await self.job(arguments["id"])
        if job["order"] is None:
            raise RecoveryError("The task has no order yet")
        ctx.sandbox.check_network(self.origin)
        order = job["order"]
        answer = await self._client.get(f"/catalog/{source}", params={"sku": order["sku"]}, signal=ctx.signal)
        if answer.status in (0, 503):
            return _failed("UNAVAILABLE", "The catalog is unavailable", retryable=True)
        if answer.status != 200:
            return _failed(_code(answer, "CATALOG_ERROR"), "The catalog refused the request")
        available = answer.body.get("available") if isinstance(answer.body, Mapping) else None
        if not isinstance(available, int) or isinstance(available, bool):
            return _failed("CATALOG_ERROR", "The catalog gave no stock")
        if available < order["quantity"]:
            return _failed("INSUFFICIENT_STOCK", "The stock does not suffice")
        return await self._change(arguments, "catalog", lambda present: {**present, "selectedSource": source})

    async def _operation(self, arguments: Mapping[str, Any], ctx: WorkerContext) -> Result:
        kind, apply = _kind(arguments), arguments.get("apply")
        if not isinstance(apply, bool):
            raise RecoveryError("apply must be true or false")
        job = await self.job(arguments["id"])
        if apply:
            documents.check_may_apply(job, kind)
        key = documents.operation_key(job["id"], kind)
        await self._note(job["id"], "operation-write" if apply else "operation-lookup", {"kind": kind, "key": key})
        self._probe(f"{point_name('recovery_operation', arguments)}:noted")
        ctx.sandbox.check_network(self.origin)
        if not apply:
            answer = await self._client.get(f"/operations/{key}", signal=ctx.signal)
            if answer.status != 200:
                return _failed("LOOKUP_UNAVAILABLE", "The operation could not be looked up", retryable=True)
            return _success(documents.check_operation(job, kind, answer.body))
        body = {
            "key": key,
            "order": documents.normalised_order(job["order"]),
            "reservationKey": documents.operation_key(job["id"], "reserve"),
        }
        answer = await self._client.post(f"/{kind}", body, signal=ctx.signal)
        if answer.status not in (200, 202, 422):
            error = {"code": "OUTCOME_UNKNOWN", "message": "The outcome of the operation is unknown"}
            return {"status": "unknown", "error": error}
        return _success(documents.check_operation(job, kind, answer.body))

    async def _checkpoint(self, arguments: Mapping[str, Any], _: WorkerContext) -> Result:
        kind, operation = _kind(arguments), arguments.get("operation")
        if not isinstance(operation, Mapping):
            raise RecoveryError("A committed remote receipt is required")
        return await self._change(
            arguments, f"checkpoint-{kind}", lambda job: documents.settled(job, kind, snapshot(operation))
        )

    async def _state(self, arguments: Mapping[str, Any], _: WorkerContext) -> Result:
        stage, error = arguments.get("stage"), arguments.get("error")
        return await self._change(arguments, str(stage), lambda job: documents.moved(job, stage, error))

    async def _context(self, arguments: Mapping[str, Any], _: WorkerContext) -> Result:
        context, answer = snapshot(arguments.get("context")), snapshot(arguments.get("answer"))
        return await self._change(arguments, "context", lambda job: documents.answered(job, context, answer))

    async def _report(self, arguments: Mapping[str, Any], _: WorkerContext) -> Result:
        job = await self.job(arguments["id"])
        while True:
            sources.write_result(
                self.directory, job["id"], job, before_rename=lambda: self._probe("recovery_report:during")
            )
            present = await self.job(job["id"])
            if present["revision"] == job["revision"]:
                return _success(job)
            # Somebody has gone on meanwhile, and may have written its result before ours: the file is the newest.
            job = present

    async def _note(self, job_id: str, kind: str, data: Any) -> None:
        await self.database.record(job_id, kind, data, owner=owner_of(job_id))

    async def _change(self, arguments: Mapping[str, Any], kind: str, change: Callable[[Job], Job]) -> Result:
        return _success(await self._change_probed(arguments["id"], kind, change))

    async def _change_probed(self, job_id: str, kind: str, change: Callable[[Job], Job]) -> Job:
        def probed(job: Job) -> Job:
            following = change(job)
            self._probe(f"{kind}:during")
            return following

        return await self.database.change(job_id, kind, probed, owner=owner_of(job_id))


def _validated(arguments: Mapping[str, Any]) -> None:
    task_id(arguments.get("id"))


def _kind(arguments: Mapping[str, Any]) -> Kind:
    kind = arguments.get("kind")
    if kind not in KINDS:
        raise RecoveryError("kind must be reserve, ship or release")
    return kind  # type: ignore[no-any-return]


def _integer(arguments: Mapping[str, Any], name: str, low: int, high: int) -> int:
    value = arguments.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise RecoveryError(f"{name} must be an integer in {low}..{high}")
    return value


def _success(content: Any) -> Result:
    return {"status": "success", "structuredContent": content}


def _failed(code: str, message: str, *, retryable: bool = False) -> Result:
    return {"status": "failed", "error": {"code": code, "message": message, "retryable": retryable}}


def _code(answer: Answer, default: str) -> str:
    code = answer.body.get("code") if isinstance(answer.body, Mapping) else None
    return code if isinstance(code, str) and code.replace("_", "").isalnum() and len(code) <= 64 else default
