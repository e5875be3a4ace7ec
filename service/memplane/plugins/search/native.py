"""`native`: what the store itself can search; for the PostgreSQL store that is keywords."""

from __future__ import annotations

from pydantic import BaseModel

from memplane.cache.ltm import LtmCache
from memplane.plugins.registry import Resources
from memplane.plugins.search.hybrid import HybridBackend
from memplane.plugins.search.own import OwnSearchBackend, own_search
from memplane.plugins.search.settings import HybridSettings, NativeSettings


class NativePlugin:
    """The entry point `native` of `memplane.search`: the store's own search, on PostgreSQL the keyword branch alone."""

    settings_model: type[BaseModel] = NativeSettings

    def create(self, settings: NativeSettings, resources: Resources) -> HybridBackend | OwnSearchBackend:
        """Needs a store that searches, or `database`; `cache` when there is one."""
        own = own_search(resources)
        if own is not None:
            return own
        cache = resources.cache if isinstance(resources.cache, LtmCache) else None
        return HybridBackend(
            resources.require("database", "native"), HybridSettings(branches=("keyword",)), cache=cache
        )


plugin = NativePlugin()
