"""`/v1/recovery/jobs…`: saved recovery tasks of the credential's tenant, and a person's decision about one.

For the roles `writer` and `admin`. A decision carries the name that the credential proves. A credential that is limited
to users sees their tasks alone; a foreign task behaves as absent.
"""

# FastAPI reads the annotations of these routes: they must stay objects.
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal, TypeVar

import asyncpg
from fastapi import APIRouter, Depends, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from memplane.api.asgi import header_map
from memplane.api.auth.identity import Authenticator, Identity, Role
from memplane.api.errors import Forbidden, HttpError, Unavailable
from memplane.errors import TargetUnavailable
from memplane.recovery import RecoveryError, documents
from memplane.recovery.postgres_jobs import PostgresJobs
from memplane.schema.database import Database

T = TypeVar("T")
TaskId = Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{1,64}$", description="the task's id")]
NOT_FOUND: dict[int | str, dict[str, Any]] = {404: {"description": "There is no such task, or it is another tenant's"}}
CONFLICT: dict[int | str, dict[str, Any]] = {409: {"description": "The task does not wait for a decision"}}


class RecoveryJob(BaseModel):
    """A task's document."""

    model_config = ConfigDict(extra="allow")

    schemaVersion: int  # noqa: N815 - the wire's name
    id: str
    revision: int
    stage: str
    error: str | None = None


class RecoveryJobs(BaseModel):
    jobs: list[RecoveryJob]
    next: str | None = Field(None, description="give it as `after` to get the next page")


class HistoryEntry(BaseModel):
    kind: str
    data: Any = Field(description="the whole document after a change, or what was noted")


class RecoveryHistory(BaseModel):
    events: list[HistoryEntry] = Field(description="oldest first")


class DecisionBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

    decision: Literal["approve", "reject"]


def recovery_router(database: Database, authenticator: Authenticator) -> APIRouter:
    """All routes of recovery tasks."""
    router = APIRouter(prefix="/v1/recovery/jobs", tags=["recovery"])
    Caller = Annotated[Identity, Depends(_identified(authenticator))]  # noqa: N806 - a type

    @router.get("", response_model=RecoveryJobs, summary="List tasks by id")
    async def jobs(
        caller: Caller,
        *,
        stage: Annotated[list[str] | None, Query(max_length=20, description="only at these stages")] = None,
        after: Annotated[str, Query(max_length=64, description="last id of the page before")] = "",
        limit: Annotated[int, Query(ge=1, le=1000, description="entries at most")] = 100,
    ) -> RecoveryJobs:
        found = await _answer(_store(database, caller).jobs(stages=stage or (), limit=limit, after=after))
        more = found[-1]["id"] if len(found) == limit else None
        return RecoveryJobs(jobs=[RecoveryJob(**job) for job in found], next=more)

    @router.get("/{id}", response_model=RecoveryJob, summary="Show one task", responses=NOT_FOUND)
    async def job(caller: Caller, id: TaskId) -> RecoveryJob:  # noqa: A002 - the path's name
        return RecoveryJob(**await _answer(_store(database, caller).load(id)))

    @router.get("/{id}/history", response_model=RecoveryHistory, summary="Its history", responses=NOT_FOUND)
    async def history(caller: Caller, id: TaskId) -> RecoveryHistory:  # noqa: A002
        events = await _answer(_store(database, caller).events(id))
        return RecoveryHistory(events=[HistoryEntry(kind=event.kind, data=event.data) for event in events])

    @router.post(
        "/{id}/decision",
        response_model=RecoveryJob,
        summary="Approve or reject a paused task",
        responses={**NOT_FOUND, **CONFLICT},
    )
    async def decide(caller: Caller, id: TaskId, body: DecisionBody) -> RecoveryJob:  # noqa: A002
        def change(present: documents.Job) -> documents.Job:
            return documents.decided(present, body.decision, f"{caller.tenant}/{caller.name}")

        return RecoveryJob(**await _answer(_store(database, caller).change(id, "decided", change)))

    return router


def _identified(authenticator: Authenticator) -> Callable[[Request], Awaitable[Identity]]:
    async def check(request: Request) -> Identity:
        identity = await authenticator.authenticate(header_map(request.scope))
        if not identity.roles & {Role.ADMIN, Role.WRITER}:
            raise Forbidden("Recovery tasks need the role writer or admin")
        return identity

    return check


def _store(database: Database, caller: Identity) -> PostgresJobs:
    return PostgresJobs(database, tenant=caller.tenant, users=caller.users)


async def _answer(work: Awaitable[T]) -> T:
    """What recovery refuses, as an answer of HTTP; a database that is away is 503."""
    try:
        return await work
    except RecoveryError as error:
        if str(error) == "Unknown task":
            raise HttpError(404, "NOT_FOUND", "There is no such task") from None
        raise HttpError(409, "CONFLICT", str(error)) from None
    except TargetUnavailable:
        raise Unavailable("PostgreSQL is away") from None
    except (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError):
        raise Unavailable("The schema is missing or too old: run `memplane migrate`", retry_after=10) from None
