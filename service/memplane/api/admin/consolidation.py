"""`/v1/admin/consolidation`, `/v1/admin/purge` and the audit chain of a memory.

One call works on one window of one scope, so it is bounded; `memplane consolidate` and `memplane purge` do the rest.
"""

# FastAPI reads the annotations of these routes, and some name types made within a function: they must stay objects.
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Path

from memplane.api.admin.access import AdminAccess, backend_access, tenant_access
from memplane.api.admin.consolidation_models import (
    Consolidated,
    ConsolidationPlan,
    Purged,
    Scoped,
    SupersedesChain,
    chain_model,
    plan_model,
    purge_model,
    report_model,
)
from memplane.api.auth.identity import Authenticator
from memplane.api.errors import Forbidden, HttpError, Unavailable
from memplane.consolidation import Job, consolidate, make_plan, read_chain
from memplane.consolidation.snapshot import EVERYTHING
from memplane.contracts import Scope
from memplane.errors import PluginError
from memplane.outbox.events import Target
from memplane.plugins.postgres.writing import Writing
from memplane.purge import purge
from memplane.schema.database import Database
from memplane.settings import Rule, Settings
from memplane.signal import Signal

log = logging.getLogger(__name__)
T = TypeVar("T")
Guard = Callable[[Awaitable[Any]], Awaitable[Any]]
"""Turns what PostgreSQL raises into answers (`routes.answer`)."""

MakeJob = Callable[[list[Rule]], Job]


@dataclass(frozen=True, slots=True)
class ConsolidationPlane:
    """What these routes work on."""

    database: Database
    settings: Settings
    targets: frozenset[Target]
    writing: Writing
    job: MakeJob

    @property
    def seconds(self) -> float:
        """How long a call works at most: it ends in good order and says so, before the request is cut off."""
        return self.settings.service.request_timeout / 2


def add_consolidation(router: APIRouter, plane: ConsolidationPlane, authenticator: Authenticator, guard: Guard) -> None:
    """Add the routes of consolidation, purge and the audit chain."""
    Access = Annotated[AdminAccess, Depends(tenant_access(authenticator))]  # noqa: N806 - a type
    whole_backend = Depends(backend_access(authenticator))

    @router.post(
        "/consolidation/plan",
        response_model=ConsolidationPlan,
        summary="What consolidation would do with a user's memories",
    )
    async def plan(access: Access, body: Scoped) -> ConsolidationPlan:
        after = EVERYTHING if body.after is None else body.after
        work = make_plan(plane.database, _scope(access, body), plane.job(body.rules), after=after)
        return plan_model(*await guard(work))

    @router.post("/consolidation/apply", response_model=Consolidated, summary="Consolidate a user's memories")
    async def apply(access: Access, body: Scoped) -> Consolidated:
        scope = _scope(access, body)
        after = EVERYTHING if body.after is None else body.after
        work = consolidate(
            plane.writing, scope, plane.job(body.rules), after=after, windows=1, signal=Signal.timeout(plane.seconds)
        )
        report = await guard(_busy(work))
        log.info(
            "consolidation was asked for", extra={"by": access.name, "tenant": scope.tenant, "changed": report.changed}
        )
        return report_model(report)

    @router.get(
        "/memories/{id}/supersedes",
        response_model=SupersedesChain,
        summary="Which memories were merged into this one, and into which it was",
    )
    async def supersedes(access: Access, id: Annotated[int, Path(ge=1, le=2**63 - 1)]) -> SupersedesChain:  # noqa: A002
        return chain_model(id, await guard(read_chain(plane.database, id, access.tenant)))

    @router.get(
        "/purge", response_model=Purged, summary="How many tombstones wait for what", dependencies=[whole_backend]
    )
    async def purge_preview() -> Purged:
        return purge_model(await guard(purge(plane.database, plane.settings, plane.targets, dry_run=True)))

    @router.post("/purge", response_model=Purged, summary="Remove what is over", dependencies=[whole_backend])
    async def purge_now() -> Purged:
        ended = Signal.timeout(plane.seconds)
        return purge_model(await guard(purge(plane.database, plane.settings, plane.targets, signal=ended)))


def _scope(access: AdminAccess, body: Scoped) -> Scope:
    """The scope that is asked for. Raises `Forbidden` for another tenant's, 400 when `platform` names none."""
    if access.tenant is None:
        if not body.tenant:
            raise HttpError(400, "INVALID_REQUEST", "With the role platform the tenant must be named")
        return Scope(body.tenant, body.user)
    if body.tenant not in (None, access.tenant):
        raise Forbidden("The tenant is another one")
    return Scope(access.tenant, body.user)


async def _busy(work: Awaitable[T]) -> T:
    try:
        return await work
    except PluginError as error:
        raise Unavailable(error.safe_message) from None
