"""One started backend for all tests of a module: making and loading a collection takes seconds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest_asyncio

from memplane.plugins.embeddings.hashing import HashingEmbedding, HashingSettings
from memplane.plugins.milvus.backend import MilvusBackend
from memplane.plugins.milvus.settings import MilvusStoreSettings
from memplane.projections.milvus_client import MilvusConnection
from memplane.settings import MilvusSettings

DIMENSIONS = 64


def new_backend(milvus_settings: MilvusSettings, collection: str, dimensions: int = DIMENSIONS) -> MilvusBackend:
    """A backend as another process would make it, not started."""
    return MilvusBackend(
        MilvusStoreSettings(collection=collection),
        MilvusConnection(milvus_settings),
        HashingEmbedding(HashingSettings(dimensions=dimensions)),
        owns_connection=True,
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def milvus_backend(milvus_settings: MilvusSettings) -> AsyncIterator[MilvusBackend]:
    backend = new_backend(milvus_settings, f"memplane_test_{uuid4().hex}")
    await backend.start()
    yield backend
    await backend.collection.drop()
    await backend.close()
