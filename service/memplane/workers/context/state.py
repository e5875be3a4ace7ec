"""Contexts kept between calls: scopes, the store's protocol, a store in memory, and a queue. Source: X-11 … X-13.

A scope names whose state it is; it is no credential. Who may use which scope is the application's to decide.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

from memplane.contracts import CallOptions
from memplane.runtime.canonical import canonical_json, freeze, snapshot
from memplane.runtime.errors import DefinitionError
from memplane.workers.context.errors import ContextError, invalid
from memplane.workers.context.items import Context

T = TypeVar("T")
Scope: TypeAlias = Mapping[str, str]
"""`{sessionId?, turnId?, invocationId?}`, at least one; the whole tuple is the key."""

IDENTIFIERS = ("sessionId", "turnId", "invocationId")
DEFAULT_TTL_MS = 3_600_000
LONGEST_TTL_MS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class StoredContext:
    """A context and the version it was written under. Versions are fresh with every write, also after expiry."""

    version: str
    context: Context


class ContextStateStore(Protocol):
    """Keeps one context per scope for a time.

    `compare_and_set` writes only when the present version equals `expected_version` (None: only when there is none) and
    raises `ContextError` STATE_CONFLICT otherwise; a write starts the time anew, a read does not.
    """

    async def get(self, scope: Scope, options: CallOptions) -> StoredContext | None: ...
    async def compare_and_set(
        self,
        scope: Scope,
        expected_version: str | None,
        next: Context,  # noqa: A002
        options: CallOptions,
    ) -> StoredContext: ...


def check_scope(scope: object) -> Scope:
    """A copy of a scope. Raises `ContextError`."""
    if not isinstance(scope, Mapping) or not scope:
        raise invalid("scope requires at least one identifier")
    for name, value in scope.items():
        if name not in IDENTIFIERS:
            raise invalid(f"scope has an unknown identifier: {name}")
        if not isinstance(value, str) or not value:
            raise invalid(f"scope.{name} must be a nonempty string identifier")
    return {name: scope[name] for name in IDENTIFIERS if name in scope}


def scope_key(scope: Scope) -> str:
    """One text per scope: canonical JSON, so that no two scopes share it."""
    return canonical_json(scope)


def conflict() -> ContextError:
    return ContextError("STATE_CONFLICT", "Context state was changed by another operation")


def check_ttl(ttl_ms: int) -> float:
    """Milliseconds to seconds. Raises `DefinitionError`."""
    if isinstance(ttl_ms, bool) or not isinstance(ttl_ms, int) or not 1 <= ttl_ms <= LONGEST_TTL_MS:
        raise DefinitionError(f"ttl_ms must be an integer in 1..{LONGEST_TTL_MS}")
    return ttl_ms / 1000


@dataclass(slots=True)
class _Entry:
    stored: StoredContext
    expires: float


class InMemoryContextStore:
    """State of one process. `ttl_ms` counts from the last write; above `max_entries` the least recently used goes."""

    def __init__(
        self,
        *,
        ttl_ms: int = DEFAULT_TTL_MS,
        max_entries: int = 1000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ttl = check_ttl(ttl_ms)
        if isinstance(max_entries, bool) or not isinstance(max_entries, int) or max_entries < 1:
            raise DefinitionError("max_entries must be a positive integer")
        self._max_entries = max_entries
        self._clock = clock
        self._entries: OrderedDict[str, _Entry] = OrderedDict()

    async def get(self, scope: Scope, options: CallOptions | None = None) -> StoredContext | None:
        """The state of a scope, None when absent or expired."""
        return self._live(scope_key(scope))

    async def compare_and_set(
        self,
        scope: Scope,
        expected_version: str | None,
        next: Context,  # noqa: A002
        options: CallOptions | None = None,
    ) -> StoredContext:
        """Write when the version is the expected one. No other operation runs in between."""
        key = scope_key(scope)
        present = self._live(key)
        if (None if present is None else present.version) != expected_version:
            raise conflict()
        stored = StoredContext(str(uuid.uuid4()), freeze(snapshot(next)))
        self._entries[key] = _Entry(stored, self._clock() + self._ttl)
        self._entries.move_to_end(key)
        while len(self._entries) > self._max_entries:
            self._entries.popitem(last=False)
        return stored

    def _live(self, key: str) -> StoredContext | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.expires <= self._clock():
            del self._entries[key]
            return None
        self._entries.move_to_end(key)
        return entry.stored


@dataclass(slots=True)
class _Turns:
    lock: asyncio.Lock
    pending: int = 0


class ContextOperationQueue:
    """Runs operations of one scope one after the other, in order of arrival, within this process.

    At most `max_pending` operations of a scope run or wait; one more raises QUEUE_FULL. Other processes are held off by
    the store's compare-and-set alone.
    """

    def __init__(self, *, max_pending: int = 1000) -> None:
        if isinstance(max_pending, bool) or not isinstance(max_pending, int) or max_pending < 1:
            raise DefinitionError("max_pending must be a positive integer")
        self._max_pending = max_pending
        self._turns: dict[str, _Turns] = {}

    async def run(self, scope: Scope, operation: Callable[[], Awaitable[T]]) -> T:
        """Wait for one's turn, then run."""
        key = scope_key(scope)
        turns = self._turns.setdefault(key, _Turns(asyncio.Lock()))
        if turns.pending >= self._max_pending:
            raise ContextError("QUEUE_FULL", f"More than {self._max_pending} operations of this scope are pending")
        turns.pending += 1
        try:
            async with turns.lock:
                return await operation()
        finally:
            turns.pending -= 1
            if turns.pending == 0:
                self._turns.pop(key, None)


def stored_state(version: str, document: Any) -> StoredContext:
    """A stored document as a context. Raises `ContextError` INVALID_STATE when it is none."""
    if not isinstance(document, Mapping) or not isinstance(document.get("items"), list | tuple):
        raise ContextError("INVALID_STATE", "Stored context state is invalid")
    return StoredContext(version, freeze(document))
