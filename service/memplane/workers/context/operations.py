"""LOAD, UPDATE, SELECT and COMPRESS, on an explicit context or on the stored state of a scope. Source: behaviours 5.1.

Results are the plain context (or selection), not a NodeResult; failures are raised as `ContextError`. A change of
stored state is one read and one compare-and-set, never retried here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from memplane.contracts import CallOptions
from memplane.workers.context.errors import ContextError, invalid
from memplane.workers.context.items import (
    Context,
    Item,
    bounded,
    check_context,
    check_item,
    from_ingress,
    from_source,
    merge,
    remove,
)
from memplane.workers.context.policy import ContextPolicy
from memplane.workers.context.selection import compress, select
from memplane.workers.context.state import (
    ContextOperationQueue,
    ContextStateStore,
    Scope,
    check_scope,
    conflict,
)

NODES = ("CONTEXT.LOAD", "CONTEXT.SELECT", "CONTEXT.UPDATE", "CONTEXT.COMPRESS")
PURPOSES = ("infer", "memory")
LARGEST_BUDGET = 1_000_000


class ReferenceResolver(Protocol):
    """Fetches what a reference names: its content, any JSON value."""

    async def resolve(self, reference: Mapping[str, Any], options: CallOptions) -> Any: ...


class ContextOperations:
    """The four operations with their policy and services; see `create_context`."""

    def __init__(
        self,
        policy: ContextPolicy,
        *,
        state_store: ContextStateStore | None = None,
        reference_resolver: ReferenceResolver | None = None,
        operation_queue: ContextOperationQueue | None = None,
    ) -> None:
        self._policy, self._store = policy, state_store
        self._resolver, self._queue = reference_resolver, operation_queue

    async def execute(self, node: str, input: Any, options: CallOptions | None = None) -> Any:  # noqa: A002
        """Any of the four by node id. Raises `ContextError`, or the signal's reason once it has aborted."""
        operations = {
            "CONTEXT.LOAD": self._load,
            "CONTEXT.UPDATE": self._update,
            "CONTEXT.SELECT": self._select,
            "CONTEXT.COMPRESS": self._compress,
        }
        operation = operations.get(node)
        if operation is None:
            raise ContextError("UNKNOWN_NODE", "Unknown CONTEXT node")
        if not isinstance(input, Mapping):
            raise invalid("input must be an object")
        given = options or CallOptions()
        _check_signal(given)
        return await operation(input, given)

    async def load(self, input: Mapping[str, Any], options: CallOptions | None = None) -> Context:  # noqa: A002
        """`{sources, scope?, resolveReferences?}` → context; `{scope}` alone reads the stored one."""
        context: Context = await self.execute("CONTEXT.LOAD", input, options)
        return context

    async def update(self, input: Mapping[str, Any], options: CallOptions | None = None) -> Context:  # noqa: A002
        """`{context | scope, removeIds?, add?, ingress?, expectedVersion?}` → context; in this order."""
        context: Context = await self.execute("CONTEXT.UPDATE", input, options)
        return context

    async def select(self, input: Mapping[str, Any], options: CallOptions | None = None) -> Mapping[str, Any]:  # noqa: A002
        """`{context | scope, purpose, query?, limit?, maxTokens?, strategy?}` → selection; writes nothing."""
        selection: Mapping[str, Any] = await self.execute("CONTEXT.SELECT", input, options)
        return selection

    async def compress(self, input: Mapping[str, Any], options: CallOptions | None = None) -> Context:  # noqa: A002
        """`{context | scope, maxItems?, maxTokens?, expectedVersion?}` → context."""
        context: Context = await self.execute("CONTEXT.COMPRESS", input, options)
        return context

    async def _load(self, input: Mapping[str, Any], options: CallOptions) -> Context:  # noqa: A002
        if "context" in input:
            raise invalid("LOAD takes either context or scope through sources, not context")
        if "sources" not in input and "scope" in input:
            scope, _ = self._stored_scope(input)
            return await self._serial(scope, lambda: self._read(scope, input, options))
        sources = _list(input, "sources")
        if sources is None:
            raise invalid("sources must be an array")
        items = [from_source(source, f"sources[{index}]") for index, source in enumerate(sources)]
        if _flag(input, "resolveReferences"):
            items = await self._resolve(items, options)
        context = bounded(merge((), items, self._policy), self._policy)
        if "scope" not in input:
            return context
        return await self._replace(input, options, lambda _: context, create=True)

    async def _update(self, input: Mapping[str, Any], options: CallOptions) -> Context:  # noqa: A002
        ids = _list(input, "removeIds") or ()
        if not all(isinstance(item_id, str) and item_id for item_id in ids):
            raise invalid("removeIds must be nonempty strings")
        added = [check_item(item, f"add[{i}]") for i, item in enumerate(_list(input, "add") or ())]
        ingress = [from_ingress(item, f"ingress[{i}]") for i, item in enumerate(_list(input, "ingress") or ())]

        def change(context: Context) -> Context:
            items = remove(context["items"], ids, self._policy)
            return bounded(merge(merge(items, added, self._policy), ingress, self._policy), self._policy)

        return await self._change(input, options, change)

    async def _select(self, input: Mapping[str, Any], options: CallOptions) -> Mapping[str, Any]:  # noqa: A002
        if input.get("purpose") not in PURPOSES:
            raise invalid(f"purpose must be one of {', '.join(PURPOSES)}")
        strategy = input.get("strategy", {"kind": "default"})
        if not isinstance(strategy, Mapping) or not isinstance(strategy.get("kind"), str):
            raise invalid("strategy must be an object with a kind")
        if strategy["kind"] != "default":
            raise ContextError("STRATEGY_UNAVAILABLE", "Only the default selection strategy is available")
        limit, max_tokens = _budget(input, "limit"), _budget(input, "maxTokens")
        context = await self._given(input, options)
        return select(
            context["items"],
            self._policy,
            purpose=input["purpose"],
            query=input.get("query"),
            limit=limit,
            max_tokens=max_tokens,
        )

    async def _compress(self, input: Mapping[str, Any], options: CallOptions) -> Context:  # noqa: A002
        max_items, max_tokens = _budget(input, "maxItems"), _budget(input, "maxTokens")
        return await self._change(
            input,
            options,
            lambda c: compress(c["items"], self._policy, max_items=max_items, max_tokens=max_tokens),
        )

    async def _resolve(self, items: list[Item], options: CallOptions) -> list[Item]:
        if self._resolver is None:
            raise ContextError("RESOLVER_UNAVAILABLE", "References cannot be resolved: no resolver is configured")
        resolved: list[Item] = []
        for index, item in enumerate(items):
            if item.get("metadata", {}).get("sourceType") != "reference":
                resolved.append(item)
                continue
            content = await self._resolver.resolve(item["source"], options)
            _check_signal(options)
            resolved.append(check_item({**item, "content": content}, f"sources[{index}]"))
        return resolved

    async def _given(self, input: Mapping[str, Any], options: CallOptions) -> Context:  # noqa: A002
        if ("context" in input) == ("scope" in input):
            raise invalid("Provide either context or scope")
        if "context" in input:
            return check_context(input["context"], self._policy)
        scope, _ = self._stored_scope(input)
        return await self._serial(scope, lambda: self._read(scope, input, options))

    async def _change(
        self,
        input: Mapping[str, Any],  # noqa: A002
        options: CallOptions,
        change: Callable[[Context], Context],
    ) -> Context:
        if ("context" in input) == ("scope" in input):
            raise invalid("Provide either context or scope")
        if "context" in input:
            return change(check_context(input["context"], self._policy))
        return await self._replace(input, options, change, create=False)

    async def _replace(
        self,
        input: Mapping[str, Any],  # noqa: A002
        options: CallOptions,
        change: Callable[[Context], Context],
        *,
        create: bool,
    ) -> Context:
        scope, store = self._stored_scope(input)

        async def operation() -> Context:
            stored = await store.get(scope, options)
            if stored is None and not create:
                raise _not_found()
            version = None if stored is None else stored.version
            _check_expected(input, version)
            context = change({"items": ()} if stored is None else stored.context)
            _check_signal(options)
            return (await store.compare_and_set(scope, version, context, options)).context

        return await self._serial(scope, operation)

    async def _read(self, scope: Scope, input: Mapping[str, Any], options: CallOptions) -> Context:  # noqa: A002
        _, store = self._stored_scope(input)
        stored = await store.get(scope, options)
        if stored is None:
            raise _not_found()
        _check_expected(input, stored.version)
        return stored.context

    def _stored_scope(self, input: Mapping[str, Any]) -> tuple[Scope, ContextStateStore]:  # noqa: A002
        scope = check_scope(input["scope"])
        if self._store is None:
            raise ContextError("STATE_STORE_UNAVAILABLE", "No context state store is configured")
        return scope, self._store

    async def _serial(self, scope: Scope, operation: Callable[[], Awaitable[Context]]) -> Context:
        return await (operation() if self._queue is None else self._queue.run(scope, operation))


def _check_signal(options: CallOptions) -> None:
    if options.signal is not None:
        options.signal.raise_if_aborted()


def _check_expected(input: Mapping[str, Any], version: str | None) -> None:  # noqa: A002
    if "expectedVersion" not in input:
        return
    if not isinstance(input["expectedVersion"], str) or not input["expectedVersion"]:
        raise invalid("expectedVersion must be a nonempty string")
    if input["expectedVersion"] != version:
        raise conflict()


def _not_found() -> ContextError:
    return ContextError("CONTEXT_NOT_FOUND", "Context state is absent or expired")


def _list(input: Mapping[str, Any], name: str) -> list[Any] | tuple[Any, ...] | None:  # noqa: A002
    if name not in input:
        return None
    value = input[name]
    if not isinstance(value, list | tuple):
        raise invalid(f"{name} must be an array")
    return value


def _flag(input: Mapping[str, Any], name: str) -> bool:  # noqa: A002
    value = input.get(name, False)
    if not isinstance(value, bool):
        raise invalid(f"{name} must be a boolean")
    return value


def _budget(input: Mapping[str, Any], name: str) -> int | None:  # noqa: A002
    if name not in input:
        return None
    value = input[name]
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST_BUDGET:
        raise invalid(f"{name} must be an integer in 0..{LARGEST_BUDGET}")
    return value
