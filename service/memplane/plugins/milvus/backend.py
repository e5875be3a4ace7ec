"""The Milvus store backend: one connection, from which scoped stores are cut."""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary

from memplane.contracts import Capabilities, EmbeddingProvider, Scope
from memplane.plugins.milvus.collection import Collection
from memplane.plugins.milvus.settings import MilvusStoreSettings
from memplane.plugins.milvus.store import STRATEGIES, MilvusStore
from memplane.plugins.postgres.documents import check_scope_part
from memplane.plugins.postgres.order import ORDER_FIELDS
from memplane.projections.milvus_client import MilvusConnection
from memplane.retrieval.filters import OPERATORS


class MilvusBackend:
    """Implements `StoreBackend`, and `SearchBackend` by its stores' vector search.

    `milvus` belongs to its creator unless `owns_connection` says otherwise.
    """

    def __init__(
        self,
        settings: MilvusStoreSettings,
        milvus: MilvusConnection,
        embedding: EmbeddingProvider,
        *,
        owns_connection: bool = False,
    ) -> None:
        self._settings = settings
        self._milvus = milvus
        self._owns_connection = owns_connection
        self._locks: WeakValueDictionary[Scope, asyncio.Lock] = WeakValueDictionary()
        self.collection = Collection(milvus, settings.collection, embedding)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            atomicBatches=False, strategies=STRATEGIES, filters=OPERATORS, orderFields=ORDER_FIELDS, writers="one"
        )

    async def start(self) -> None:
        """Make or check the collections and load them. Raises `TargetUnavailable`, `IdentityError`."""
        await self.collection.open()

    async def close(self) -> None:
        """Close the connection if it is the store's own. Idempotent."""
        if self._owns_connection:
            await self._milvus.close()

    async def healthy(self) -> bool:
        """Whether the server answers now."""
        return await self._milvus.healthy()

    def scoped(self, scope: Scope) -> MilvusStore:
        """The store of one tenant and user. Raises INVALID_INPUT for a scope that cannot be stored."""
        check_scope_part(scope.tenant, "tenant")
        check_scope_part(scope.user, "user")
        lock = self._locks.get(scope)
        if lock is None:
            lock = self._locks[scope] = asyncio.Lock()
        return MilvusStore(
            self.collection, scope, lock, require_expected_version=bool(self._settings.require_expected_version)
        )
