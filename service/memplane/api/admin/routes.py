"""The routes of `/v1/admin/`. Each checks who asks; a tenant's admin sees and changes that tenant's events alone."""

# FastAPI reads the annotations of these routes, and some name types made within a function: they must stay objects.
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import asyncpg
from fastapi import APIRouter, Depends, Path, Query

from memplane.api.admin.access import AdminAccess, backend_access, tenant_access
from memplane.api.admin.consolidation import ConsolidationPlane, add_consolidation
from memplane.api.admin.memory_state import memory_state
from memplane.api.admin.models import (
    Changed,
    Drift,
    EventIds,
    EventStatus,
    MemoryState,
    OutboxEvent,
    OutboxPage,
    ReconciliationRunDetail,
    ReconciliationRuns,
    Status,
    TargetName,
    event_model,
)
from memplane.api.admin.rebuilds import Generations, read_generations
from memplane.api.admin.runs import list_runs, newest_full_runs, read_run
from memplane.api.auth.identity import Authenticator
from memplane.api.auth.status_key import StatusKey
from memplane.api.errors import HttpError, Unavailable
from memplane.errors import SchemaError, TargetUnavailable
from memplane.outbox.admin import discard, inspect, list_events, replay
from memplane.outbox.events import Target
from memplane.schema.database import Database

log = logging.getLogger(__name__)
T = TypeVar("T")

BIGINT_MAX = 2**63 - 1
Id = Annotated[int, Path(ge=1, le=BIGINT_MAX)]
Limit = Annotated[int, Query(ge=1, le=1000, description="entries at most")]

ReadStatus = Callable[[], Awaitable[Status]]
NOT_FOUND: dict[int | str, dict[str, Any]] = {404: {"description": "There is no such thing, or it is another tenant's"}}


@dataclass(frozen=True, slots=True)
class AdminPlane:
    """What the routes work on. `database` None: memories are in another store, which has no outbox."""

    database: Database | None
    targets: frozenset[Target]
    status: ReadStatus
    consolidation: ConsolidationPlane | None = None
    """None like `database`."""


def admin_router(plane: AdminPlane, authenticator: Authenticator, status_key: StatusKey) -> APIRouter:
    """All admin routes; with another store than PostgreSQL only those that have something to show."""
    router = APIRouter(prefix="/v1/admin", tags=["admin"])
    if plane.database is not None:
        _add_outbox(router, plane.database, authenticator)
        _add_memories(router, plane.database, authenticator)
        _add_comparisons(router, plane.database, plane.targets, authenticator)
    if plane.consolidation is not None:
        add_consolidation(router, plane.consolidation, authenticator, _answer)
    _add_status(router, plane, authenticator, status_key)
    return router


def _add_outbox(router: APIRouter, database: Database, authenticator: Authenticator) -> None:
    Access = Annotated[AdminAccess, Depends(tenant_access(authenticator))]  # noqa: N806 - a type

    @router.get("/outbox", response_model=OutboxPage, summary="List events, newest first")
    async def outbox(
        access: Access,
        *,
        target: TargetName | None = None,
        status: EventStatus | None = None,
        memory_id: Annotated[int | None, Query(alias="memoryId", ge=1, le=BIGINT_MAX)] = None,
        before: Annotated[int | None, Query(ge=1, le=BIGINT_MAX, description="last id of the page before")] = None,
        limit: Limit = 100,
    ) -> OutboxPage:
        found = await _answer(
            list_events(
                database,
                tenant=access.tenant,
                target=Target(target) if target is not None else None,
                status=status,
                memory_id=memory_id,
                before=before,
                limit=limit,
            )
        )
        more = found[-1].id if len(found) == limit else None
        return OutboxPage(events=[event_model(record) for record in found], next_before=more)

    @router.get("/outbox/{id}", response_model=OutboxEvent, summary="Inspect one event", responses=NOT_FOUND)
    async def event(access: Access, id: Id) -> OutboxEvent:  # noqa: A002 - the path's name
        found = await _answer(inspect(database, id, tenant=access.tenant))
        if found is None:
            raise HttpError(404, "NOT_FOUND", f"There is no event {id}")
        return event_model(found)

    @router.post("/outbox/replay", response_model=Changed, summary="Give dead events a new set of attempts")
    async def replay_events(access: Access, body: EventIds) -> Changed:
        return _changed(access, "replay", await _answer(replay(database, body.ids, tenant=access.tenant)))

    @router.post("/outbox/discard", response_model=Changed, summary="Give dead events up")
    async def discard_events(access: Access, body: EventIds) -> Changed:
        return _changed(access, "discard", await _answer(discard(database, body.ids, tenant=access.tenant)))


def _changed(access: AdminAccess, verb: str, ids: Iterable[int]) -> Changed:
    changed = sorted(ids)
    log.info("%s of dead events", verb, extra={"by": access.name, "events": changed})
    return Changed(ids=changed)


def _add_memories(router: APIRouter, database: Database, authenticator: Authenticator) -> None:
    Access = Annotated[AdminAccess, Depends(tenant_access(authenticator))]  # noqa: N806 - a type

    @router.get(
        "/memories/{id}", response_model=MemoryState, summary="State and history of one memory", responses=NOT_FOUND
    )
    async def memory(access: Access, id: Id) -> MemoryState:  # noqa: A002 - the path's name
        found = await _answer(memory_state(database, id, access.tenant))
        if found is None:
            raise HttpError(404, "NOT_FOUND", f"There is no memory {id}")
        return found


def _add_comparisons(
    router: APIRouter, database: Database, targets: frozenset[Target], authenticator: Authenticator
) -> None:
    whole_backend = Depends(backend_access(authenticator))

    @router.get(
        "/reconciliation",
        response_model=ReconciliationRuns,
        summary="List reconciliation runs, newest first",
        dependencies=[whole_backend],
    )
    async def reconciliation(target: TargetName | None = None, limit: Limit = 20) -> ReconciliationRuns:
        return ReconciliationRuns(runs=await _answer(list_runs(database, target, limit)))

    @router.get(
        "/reconciliation/{id}",
        response_model=ReconciliationRunDetail,
        summary="One reconciliation run, its samples, and the memories that it names",
        dependencies=[whole_backend],
        responses=NOT_FOUND,
    )
    async def reconciliation_run(
        id: Id,  # noqa: A002 - the path's name
        after: Annotated[
            int | None, Query(ge=-(2**62), le=BIGINT_MAX, description="last memory id of the page before")
        ] = None,
        limit: Limit = 100,
    ) -> ReconciliationRunDetail:
        found = await _answer(read_run(database, id, after=after, limit=limit))
        if found is None:
            raise HttpError(404, "NOT_FOUND", f"There is no run {id}")
        return found

    @router.get(
        "/generations",
        response_model=Generations,
        summary="Generations of the projections, and rebuilds, newest first",
        dependencies=[whole_backend],
    )
    async def generations(limit: Limit = 20) -> Generations:
        return await _answer(read_generations(database, limit))

    @router.get(
        "/drift",
        response_model=Drift,
        summary="What the newest finished full run of each target found",
        dependencies=[whole_backend],
    )
    async def drift() -> Drift:
        projections = sorted(target.value for target in targets if target is not Target.LTM_CACHE)
        return Drift(targets=await _answer(newest_full_runs(database, projections)))


def _add_status(router: APIRouter, plane: AdminPlane, authenticator: Authenticator, status_key: StatusKey) -> None:
    @router.get(
        "/status",
        response_model=Status,
        summary="Schema, backlog, lag, dead events, drift and reachability",
        dependencies=[Depends(backend_access(authenticator, status_key))],
    )
    async def status() -> Status:
        return await plane.status()


async def _answer(asked: Awaitable[T]) -> T:
    """What PostgreSQL says, or 503 with a reason that shows nothing of the driver."""
    try:
        return await asked
    except TargetUnavailable:
        raise Unavailable("PostgreSQL is away") from None
    except (SchemaError, asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError):
        raise Unavailable("The schema is missing or too old: run `memplane migrate`", retry_after=10) from None
    except (OSError, asyncpg.PostgresConnectionError, asyncpg.InterfaceError, asyncpg.OperatorInterventionError):
        raise Unavailable("The connection to PostgreSQL broke") from None
