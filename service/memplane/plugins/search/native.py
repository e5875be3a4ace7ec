"""`native`: what the PostgreSQL store itself can search, which is keywords."""

from __future__ import annotations

from pydantic import BaseModel

from memplane.cache.ltm import LtmCache
from memplane.plugins.registry import Resources
from memplane.plugins.search.hybrid import HybridBackend
from memplane.plugins.search.settings import HybridSettings, NativeSettings


class NativePlugin:
    """The entry point `native` of `memplane.search`: the keyword branch alone."""

    settings_model: type[BaseModel] = NativeSettings

    def create(self, settings: NativeSettings, resources: Resources) -> HybridBackend:
        """Needs `database`; `cache` when there is one."""
        cache = resources.cache if isinstance(resources.cache, LtmCache) else None
        return HybridBackend(
            resources.require("database", "native"), HybridSettings(branches=("keyword",)), cache=cache
        )


plugin = NativePlugin()
