"""What a service and its RETRIEVAL process agree on: addresses, and how a memory search travels between them.

The caller's scope travels in `target.metadata`, set by the service from the caller's credential and by nobody else. So
whoever holds the token of the RETRIEVAL process can search in every scope: it is a secret of the platform, like the
database's password. What a search went without comes back in the output's metadata.
"""

from __future__ import annotations

from typing import Any, Final

from memplane.contracts import Scope, SearchBackend
from memplane.errors import PluginError, RetrievalError
from memplane.plugins.postgres.documents import check_scope_part
from memplane.retrieval import (
    Resolution,
    RetrievalContext,
    RetrievalOutput,
    RetrievalRequest,
    RetrievalTarget,
    create_memory_retrieval_provider,
)
from memplane.retrieval.bridges.requests import memory_input
from memplane.retrieval.degradation import collect_degraded
from memplane.retrieval.errors import TARGET_NOT_FOUND, invalid_input

TARGET: Final = "memories"
DEFAULT: Final = "default"
"""The strategy of a search that names none: the search plugin's own choice, which may degrade."""

WORKER_ADDRESS: Final = {
    "workerId": "retrieval",
    "workerType": "RETRIEVAL",
    "hostId": "memplane-retrieval",
    "processId": "memplane-retrieval",
}
"""The same for every replica, so that they may stand behind one load balancer."""

PUBLIC_CODES: Final = frozenset({"INVALID_INPUT", "UNSUPPORTED_STRATEGY", "UNSUPPORTED_FILTER", "SEARCH_UNAVAILABLE"})
"""Errors of a search plugin that the caller gets to see wherever the search ran."""


def target_of(scope: Scope) -> RetrievalTarget:
    """The target of a search in this scope."""
    return {"name": TARGET, "metadata": {"tenant": scope.tenant, "user": scope.user}}


def scope_of(target: RetrievalTarget) -> Scope:
    """The scope that a target names. Raises RETRIEVAL_INVALID_INPUT: there is no search without one."""
    metadata = target.get("metadata", {})
    try:
        return Scope(check_scope_part(metadata.get("tenant"), "tenant"), check_scope_part(metadata.get("user"), "user"))
    except PluginError:
        raise invalid_input("target.metadata must name tenant and user") from None


class MemoryTargets:
    """The one target of a RETRIEVAL process, for any strategy: which of them exist is for the search plugin to say."""

    def __init__(self, backend: SearchBackend) -> None:
        self._backend = backend

    def resolve(self, target: RetrievalTarget, strategy: str | None) -> Resolution:
        """Raises RETRIEVAL_TARGET_NOT_FOUND."""
        if target["name"] != TARGET:
            raise RetrievalError(TARGET_NOT_FOUND, "Retrieval target is not registered")
        return Resolution(DEFAULT if strategy is None else strategy, self)

    async def search(self, request: RetrievalRequest, context: RetrievalContext) -> RetrievalOutput:
        """Candidates that hold whole memories; `metadata.degraded` lists what the search went without."""
        asked = memory_input(request)
        if request.get("strategy") == DEFAULT:
            del asked["strategy"]
        search = self._backend.scoped(scope_of(request["target"]))
        provider = create_memory_retrieval_provider(search, lambda _: asked)
        with collect_degraded() as degraded:
            try:
                output = await provider.search(request, context)
            except PluginError as error:
                raise _public(error) from None
        metadata: dict[str, Any] = {"degraded": sorted(degraded)}
        output["metadata"] = metadata
        return output


def _public(error: PluginError) -> Exception:
    return RetrievalError(error.code, error.safe_message) if error.code in PUBLIC_CODES else error
