"""The search that a store brings itself: of every store but the PostgreSQL one, whose searches stand beside it."""

from __future__ import annotations

from collections.abc import Sequence

from memplane.contracts import CallOptions, MemorySearchProvider, Scope, SearchHit, SearchInput, StoreBackend
from memplane.errors import PluginError, SettingsError
from memplane.plugins.registry import Resources, create_store
from memplane.settings import StoreSettings


class OwnSearchBackend:
    """Implements `SearchBackend` by a store backend. `owns` when it starts and closes it, too."""

    def __init__(self, store: StoreBackend, *, owns: bool = False) -> None:
        self._store = store
        self._owns = owns

    @property
    def strategies(self) -> Sequence[str]:
        """What the store declares."""
        return self._store.capabilities.get("strategies", ())

    async def start(self) -> None:
        """Start the store, if it is this search's own."""
        if self._owns:
            await self._store.start()

    async def close(self) -> None:
        if self._owns:
            await self._store.close()

    def scoped(self, scope: Scope) -> MemorySearchProvider:
        store = self._store.scoped(scope)
        return store if isinstance(store, MemorySearchProvider) else _NoSearch()


class _NoSearch:
    async def search(self, input: SearchInput, options: CallOptions) -> Sequence[SearchHit]:  # noqa: A002
        raise PluginError("SEARCH_UNAVAILABLE", "The store does not search")


def own_search(resources: Resources) -> OwnSearchBackend | None:
    """The search of the process's store; None when its memories are in PostgreSQL.

    A process without a store (`memplane retrieval`) gets one of its own from the settings.
    """
    chosen = foreign_store(resources)
    if resources.store is not None:
        searches = chosen is not None or resources.store.capabilities.get("strategies")
        return OwnSearchBackend(resources.store) if searches else None
    if chosen is None:
        return None
    return OwnSearchBackend(create_store(chosen.plugin, chosen.options, resources), owns=True)


def foreign_store(resources: Resources) -> StoreSettings | None:
    """The process's store settings when they name another store than PostgreSQL."""
    chosen = getattr(resources.settings, "store", None)
    return chosen if isinstance(chosen, StoreSettings) and chosen.plugin != "postgres" else None


def refuse_foreign_store(resources: Resources, plugin: str) -> None:
    """Raise `SettingsError` for a search over PostgreSQL beside memories that are elsewhere: it would find nothing."""
    if foreign_store(resources) is not None:
        raise SettingsError(
            f"the search plugin {plugin!r} searches PostgreSQL, and store.plugin is another store:"
            " choose search.plugin native (the store's own search) or retrieval"
        )
