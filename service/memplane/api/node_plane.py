"""Node calls on the process's store and search, each in the scope of its caller."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from memplane.api.plane import Answer
from memplane.contracts import JSON, Defaults, Scope, SearchBackend, StoreBackend
from memplane.nodes.memory import Memory, create_memory
from memplane.retrieval.degradation import collect_degraded
from memplane.signal import Signal

KEPT_SCOPES = 4096
"""Scoped memories that are kept ready; making one is cheap, finding one is cheaper."""


class MemoryPlane:
    """`refusal` tells why nothing can be called yet; it is asked for each call."""

    def __init__(
        self,
        store: StoreBackend,
        search: SearchBackend | None,
        defaults: Defaults,
        refusal: Callable[[], str | None],
        on_degraded: Callable[[str], None],
    ) -> None:
        self._store = store
        self._search = search
        self._defaults = defaults
        self._refusal = refusal
        self._on_degraded = on_degraded
        self._memories: OrderedDict[Scope, Memory] = OrderedDict()

    def refusal(self) -> str | None:
        return self._refusal()

    async def call(self, scope: Scope, node: str, document: JSON, signal: Signal) -> Answer:
        memory = self._memory(scope)
        with collect_degraded() as degraded:
            result = await memory.execute(node, document, signal=signal)
        for target in degraded:
            self._on_degraded(target)
        return Answer(result, tuple(sorted(degraded)))

    def _memory(self, scope: Scope) -> Memory:
        memory = self._memories.get(scope)
        if memory is None:
            search = self._search.scoped(scope) if self._search is not None else None
            memory = create_memory(store=self._store.scoped(scope), search=search, defaults=self._defaults)
            self._memories[scope] = memory
            if len(self._memories) > KEPT_SCOPES:
                self._memories.popitem(last=False)
        else:
            self._memories.move_to_end(scope)
        return memory
