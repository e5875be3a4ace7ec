"""`GET /v1/capabilities`: what the chosen store and search promise, for everybody who may call at all.

A client reads here whether batches are atomic, which filter operators and orders QUERY takes and which strategies
SEARCH knows; `memplane.conformance` checks that a store keeps what it declares.
"""

# FastAPI reads the annotations of these routes: they must stay objects.
from collections.abc import Sequence
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, Field

from memplane.api.asgi import header_map
from memplane.api.auth.identity import Authenticator, Identity
from memplane.contracts import SearchBackend, StoreBackend
from memplane.settings import Settings


class StorePromises(BaseModel):
    """What the store declares."""

    plugin: str = Field(description="name of the store plugin")
    atomicBatches: bool = Field(description="a WRITE, UPDATE or DELETE is done whole or not at all")  # noqa: N815
    filters: list[str] = Field(description="operators that a filter may use; without any, filters are refused")
    orderFields: list[str] = Field(description="fields that orderBy may name")  # noqa: N815
    strategies: list[str] = Field(description="searches that the store brings itself")
    writers: Literal["many", "one"] = Field(
        description="`one`: versions are compared and raised without a gap within one process only"
    )


class SearchPromises(BaseModel):
    """How SEARCH is answered."""

    plugin: str = Field(description="name of the search plugin")
    strategies: list[str] | None = Field(description="names that SEARCH may give; null: known to the plugin alone")


class Capabilities(BaseModel):
    store: StorePromises
    search: SearchPromises


def capabilities_of(settings: Settings, store: StoreBackend, search: SearchBackend) -> Capabilities:
    """The document of a process. A promise that a store does not mention is one it does not make."""
    declared = store.capabilities
    strategies: Sequence[str] | None = getattr(search, "strategies", None)
    return Capabilities(
        store=StorePromises(
            plugin=settings.store.plugin,
            atomicBatches=declared.get("atomicBatches", False),
            filters=list(declared.get("filters", ())),
            orderFields=list(declared.get("orderFields", ())),
            strategies=list(declared.get("strategies", ())),
            writers=declared.get("writers", "many"),
        ),
        search=SearchPromises(
            plugin=settings.search.plugin, strategies=None if strategies is None else list(strategies)
        ),
    )


def capabilities_router(document: Capabilities, authenticator: Authenticator) -> APIRouter:
    """The one route; any credential will do."""
    router = APIRouter(tags=["capabilities"])

    async def identified(request: Request) -> Identity:
        return await authenticator.authenticate(header_map(request.scope))

    @router.get("/v1/capabilities", response_model=Capabilities, summary="What store and search promise")
    async def capabilities(_: Annotated[Identity, Depends(identified)]) -> Capabilities:
        return document

    return router
