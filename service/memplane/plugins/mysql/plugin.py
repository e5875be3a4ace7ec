"""The entry point of the store plugin `mysql`."""

from __future__ import annotations

from pydantic import BaseModel

from memplane.plugins.mysql.backend import MysqlBackend
from memplane.plugins.mysql.settings import MysqlSettings
from memplane.plugins.registry import Resources
from memplane.settings import StoreSettings


class MysqlPlugin:
    """Builds the backend from its options alone."""

    settings_model: type[BaseModel] = MysqlSettings

    def create(self, settings: MysqlSettings, resources: Resources) -> MysqlBackend:
        """A backend that is not started yet; the process's store settings decide what the options leave open."""
        store = getattr(resources.settings, "store", None)
        if settings.require_expected_version is None and isinstance(store, StoreSettings):
            settings = settings.model_copy(update={"require_expected_version": store.require_expected_version})
        return MysqlBackend(settings)


plugin = MysqlPlugin()
