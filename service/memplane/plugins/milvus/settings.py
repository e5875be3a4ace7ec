"""Settings of the store `milvus`."""

from __future__ import annotations

from pydantic import Field

from memplane.settings import MilvusSettings, Section


class MilvusStoreSettings(Section):
    """`store.options` of the plugin `milvus`. The embedding provider is the process's own (`embedding.plugin`)."""

    milvus: MilvusSettings | None = Field(
        None, description="connection of the store's own; by default as in the process's milvus settings"
    )
    collection: str = Field(
        "memplane_memories",
        pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,199}$",
        description="collection that holds the memories; another one beside it, named ..._ids, gives out ids",
    )
    require_expected_version: bool | None = Field(
        None, description="UPDATE and DELETE must name the version they expect; by default as in the store settings"
    )
