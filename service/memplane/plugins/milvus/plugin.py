"""The entry point of the store plugin `milvus`."""

from __future__ import annotations

from pydantic import BaseModel

from memplane.errors import SettingsError
from memplane.plugins.milvus.backend import MilvusBackend
from memplane.plugins.milvus.settings import MilvusStoreSettings
from memplane.plugins.registry import Resources
from memplane.projections.milvus_client import MilvusConnection
from memplane.settings import MilvusSettings, StoreSettings


class MilvusPlugin:
    """Builds the backend from options and from what the process shares."""

    settings_model: type[BaseModel] = MilvusStoreSettings

    def create(self, settings: MilvusStoreSettings, resources: Resources) -> MilvusBackend:
        """A backend that is not started yet. Raises `SettingsError` without Milvus or without embeddings."""
        embedding = resources.require("embedding", "milvus")
        store = getattr(resources.settings, "store", None)
        if settings.require_expected_version is None and isinstance(store, StoreSettings):
            settings = settings.model_copy(update={"require_expected_version": store.require_expected_version})
        # Of its own: a slow search of others must not keep the truth waiting for a thread.
        return MilvusBackend(settings, MilvusConnection(_address(settings, resources)), embedding, owns_connection=True)


def _address(settings: MilvusStoreSettings, resources: Resources) -> MilvusSettings:
    chosen = settings.milvus or getattr(resources.settings, "milvus", None)
    if not isinstance(chosen, MilvusSettings) or not chosen.enabled:
        raise SettingsError("the plugin 'milvus' needs store.options.milvus.uri, or milvus.uri of the process")
    if str(chosen.uri).endswith(".db"):
        raise SettingsError("the store 'milvus' needs a Milvus server: Milvus Lite keeps no strong reads")
    return chosen


plugin = MilvusPlugin()
