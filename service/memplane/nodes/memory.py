"""`create_memory`: the SDK on one scoped store. Source: seed `000`, design section 3.

Its methods never raise for what a caller or a plugin did wrong; everything becomes a `NodeResult`. Two things do come
out as exceptions: wrong arguments to the factory, and asyncio's own cancellation of the calling task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

from memplane.contracts import (
    CallOptions,
    Defaults,
    DeleteOutput,
    MemoryItem,
    MemorySearchProvider,
    MemoryStore,
    NodeError,
    NodeInvoker,
    NodeResult,
    QueryOutput,
    SearchHit,
    Status,
)
from memplane.errors import PluginError, SettingsError
from memplane.nodes.limits import InvalidDefaults, check_defaults
from memplane.nodes.operations import OPERATIONS, Call, Plugins
from memplane.signal import Signal

log = logging.getLogger(__name__)


class Memory:
    """The six operations on one store. Made by `create_memory`; safe to share between tasks."""

    def __init__(self, plugins: Plugins, defaults: Mapping[str, int]) -> None:
        self._plugins = plugins
        self._defaults = defaults

    async def execute(
        self,
        node: str,
        input: Any,  # noqa: A002 - public name, fixed by the design
        *,
        defaults: Defaults | Mapping[str, int] | None = None,
        signal: Signal | None = None,
        runtime: NodeInvoker | None = None,
    ) -> NodeResult[Any]:
        """Run a node by its id. `defaults` rank below those of the factory and above the built-in 100 and 10.

        An aborted signal outranks every other outcome, success included: the result is then `cancelled` with
        MEMORY_CANCELLED, which does not mean that nothing was committed.
        """
        execution_id = str(uuid4())
        if signal is not None and signal.aborted:
            return _cancelled(execution_id, node)
        try:
            output = await self._run(node, input, defaults, CallOptions(signal=signal, runtime=runtime))
        except asyncio.CancelledError:
            # The task's own cancellation goes on; a plugin that cancelled its work because of the signal has a result.
            if signal is None or not signal.aborted or _task_is_cancelling():
                raise
            return _cancelled(execution_id, node)
        except PluginError as error:
            result = _failed(execution_id, node, error.code, error.safe_message)
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything, and none of it may be shown
            _log_failure(node, error, signal)
            result = _failed(execution_id, node, "MEMORY_BACKEND_ERROR", "Memory backend operation failed")
        else:
            result = NodeResult(execution_id, node, "success", output)
        return _cancelled(execution_id, node) if signal is not None and signal.aborted else result

    async def _run(
        self,
        node: str,
        input: Any,  # noqa: A002
        defaults: Mapping[str, Any] | None,
        options: CallOptions,
    ) -> Any:
        operation = OPERATIONS.get(node) if isinstance(node, str) else None
        if operation is None:
            raise PluginError("UNKNOWN_NODE", "Unknown MEMORY node")
        try:
            layers = (self._defaults, check_defaults(defaults))
        except InvalidDefaults as error:
            raise PluginError("INVALID_INPUT", str(error)) from None
        return await operation(self._plugins, Call(input, layers, options))

    async def get(
        self,
        input: Any,  # noqa: A002
        *,
        signal: Signal | None = None,
        runtime: NodeInvoker | None = None,
    ) -> NodeResult[Sequence[MemoryItem]]:
        """MEMORY.GET: `{ids?, keys?}` → the items found, ids first, each once."""
        return await self.execute("MEMORY.GET", input, signal=signal, runtime=runtime)

    async def query(
        self,
        input: Any,  # noqa: A002
        *,
        signal: Signal | None = None,
        runtime: NodeInvoker | None = None,
    ) -> NodeResult[QueryOutput]:
        """MEMORY.QUERY: `{filter?, limit?, cursor?, orderBy?}` → `{items, nextCursor?}`."""
        return await self.execute("MEMORY.QUERY", input, signal=signal, runtime=runtime)

    async def search(
        self,
        input: Any,  # noqa: A002
        *,
        signal: Signal | None = None,
        runtime: NodeInvoker | None = None,
    ) -> NodeResult[Sequence[SearchHit]]:
        """MEMORY.SEARCH: `{query, strategy?, filter?, limit?, options?}` → hits in the plugin's order."""
        return await self.execute("MEMORY.SEARCH", input, signal=signal, runtime=runtime)

    async def write(
        self,
        input: Any,  # noqa: A002
        *,
        signal: Signal | None = None,
        runtime: NodeInvoker | None = None,
    ) -> NodeResult[Sequence[MemoryItem]]:
        """MEMORY.WRITE: `{memories: [{content, key?, metadata?}]}` → one complete item per draft."""
        return await self.execute("MEMORY.WRITE", input, signal=signal, runtime=runtime)

    async def update(
        self,
        input: Any,  # noqa: A002
        *,
        signal: Signal | None = None,
        runtime: NodeInvoker | None = None,
    ) -> NodeResult[Sequence[MemoryItem]]:
        """MEMORY.UPDATE: `{memories: [{id, content?, metadata?, expectedVersion?}]}` → the complete items."""
        return await self.execute("MEMORY.UPDATE", input, signal=signal, runtime=runtime)

    async def delete(
        self,
        input: Any,  # noqa: A002
        *,
        signal: Signal | None = None,
        runtime: NodeInvoker | None = None,
    ) -> NodeResult[DeleteOutput]:
        """MEMORY.DELETE: `{ids, expectedVersions?}` → `{deleted}`, the ids that this call removed."""
        return await self.execute("MEMORY.DELETE", input, signal=signal, runtime=runtime)


def create_memory(
    *,
    store: MemoryStore,
    search: MemorySearchProvider | None = None,
    defaults: Defaults | Mapping[str, int] | None = None,
) -> Memory:
    """The SDK on a scoped store. `search` replaces the store's own; `defaults` are copied and checked now.

    Nothing given here is ever closed by the SDK. Raises `InvalidDefaults` for a default limit outside 1..10000, and
    `SettingsError` for a `StoreBackend` that was given in place of a store.
    """
    return Memory(Plugins(_scoped(store), search), check_defaults(defaults))


def _scoped(store: MemoryStore) -> MemoryStore:
    if callable(getattr(store, "scoped", None)) and not callable(getattr(store, "get", None)):
        raise SettingsError("store is a StoreBackend; give backend.scoped(Scope(tenant, user))")
    return store


def _failed(execution_id: str, node: str, code: str, message: str, status: Status = "failed") -> NodeResult[Any]:
    return NodeResult(execution_id, node, status, None, NodeError(code, message))


def _cancelled(execution_id: str, node: str) -> NodeResult[Any]:
    return _failed(execution_id, node, "MEMORY_CANCELLED", "Memory operation cancelled", "cancelled")


def _log_failure(node: str, error: Exception, signal: Signal | None) -> None:
    """The class alone: a driver's text may hold addresses, statements and values.

    What a call raises because nobody wants its result any more (its client is gone, its time is up) is no failure.
    """
    extra = {"node": node, "error": type(error).__name__}
    if signal is None or not signal.aborted:
        log.error("a MEMORY backend failed", extra=extra)
    elif error is signal.reason:
        log.debug("a MEMORY call was cancelled", extra=extra)
    else:
        log.info("a MEMORY backend ended a cancelled call with an error", extra=extra)


def _task_is_cancelling() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
