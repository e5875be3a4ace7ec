"""`create_retrieval`: RETRIEVAL.SEARCH as an SDK (cases R-02 to R-16). Everything becomes a `NodeResult`."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from memplane.contracts import NodeError, NodeInvoker, NodeResult, Status
from memplane.errors import RetrievalError
from memplane.retrieval.defaults import check_defaults, effective
from memplane.retrieval.documents import NODE, RetrievalContext, RetrievalOutput, RetrievalProviders
from memplane.retrieval.errors import BACKEND_ERROR, CANCELLED, PROVIDER_UNAVAILABLE, TIMEOUT
from memplane.retrieval.outputs import check_output
from memplane.retrieval.requests import read_request
from memplane.signal import Signal


class Retrieval:
    """Searches in registered targets. Made by `create_retrieval`; safe to share between tasks."""

    def __init__(self, providers: RetrievalProviders, defaults: Mapping[str, int]) -> None:
        self._providers = providers
        self._defaults = defaults

    async def search(
        self,
        input: Any,  # noqa: A002 - public name
        *,
        defaults: Mapping[str, Any] | None = None,
        signal: Signal | None = None,
        runtime: NodeInvoker | None = None,
    ) -> NodeResult[RetrievalOutput]:
        """`{query, target, strategy?, filter?, limit?, options?}` → `{candidates, target, strategy, metadata?}`.

        `defaults` rank below the factory's. An aborted signal gives status `cancelled`, code RETRIEVAL_CANCELLED;
        RETRIEVAL_TIMEOUT of a provider gives status `timeout`; every other error `failed`.
        """
        execution_id = str(uuid4())
        if signal is not None and signal.aborted:
            return _cancelled(execution_id)
        try:
            output = await self._run(input, defaults, signal, runtime)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if signal is None or not signal.aborted or (task is not None and task.cancelling() > 0):
                raise
            return _cancelled(execution_id)
        except RetrievalError as error:
            status: Status = "timeout" if error.code == TIMEOUT else "failed"
            result = _failed(execution_id, status, error.code, error.message)
        except Exception:  # noqa: BLE001 - a provider may raise anything, and none of it may be shown
            result = _failed(execution_id, "failed", BACKEND_ERROR, "Retrieval backend operation failed")
        else:
            result = NodeResult(execution_id, NODE, "success", output)
        return _cancelled(execution_id) if signal is not None and signal.aborted else result

    async def _run(
        self,
        input: Any,  # noqa: A002
        defaults: Mapping[str, Any] | None,
        signal: Signal | None,
        runtime: NodeInvoker | None,
    ) -> RetrievalOutput:
        values = effective(self._defaults, check_defaults(defaults))
        request = read_request(input, values.search_limit)
        resolution = self._providers.resolve(request["target"], request.get("strategy"))
        if inspect.isawaitable(resolution):
            resolution = await resolution
        _check_resolution(resolution)
        request.setdefault("strategy", resolution.strategy)
        context = RetrievalContext(signal, runtime, values)
        return check_output(request, await resolution.provider.search(request, context))


def create_retrieval(*, providers: RetrievalProviders, defaults: Mapping[str, Any] | None = None) -> Retrieval:
    """The SDK on a registry of targets; `defaults` (the shape of `workers.retrieval`) are copied and checked now.

    Raises RETRIEVAL_PROVIDER_UNAVAILABLE when `providers` cannot resolve, RETRIEVAL_INVALID_INPUT for bad defaults.
    """
    if not callable(getattr(providers, "resolve", None)):
        raise RetrievalError(PROVIDER_UNAVAILABLE, "providers must be a registry with a resolve method")
    return Retrieval(providers, check_defaults(defaults))


def _check_resolution(resolution: Any) -> None:
    usable = callable(getattr(getattr(resolution, "provider", None), "search", None))
    strategy = getattr(resolution, "strategy", None)
    if not usable or not isinstance(strategy, str) or not strategy.strip():
        raise RetrievalError(PROVIDER_UNAVAILABLE, "No retrieval provider is available")


def _failed(execution_id: str, status: Status, code: str, message: str) -> NodeResult[Any]:
    return NodeResult(execution_id, NODE, status, None, NodeError(code, message))


def _cancelled(execution_id: str) -> NodeResult[Any]:
    return _failed(execution_id, "cancelled", CANCELLED, "Retrieval operation cancelled")
