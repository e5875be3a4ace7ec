"""The PostgreSQL store backend: one pool, from which scoped stores are cut."""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from memplane.contracts import Capabilities, Scope
from memplane.outbox.events import Target
from memplane.plugins.postgres.documents import check_scope_part
from memplane.plugins.postgres.order import ORDER_FIELDS
from memplane.plugins.postgres.store import PostgresStore
from memplane.plugins.postgres.writing import Writing
from memplane.retrieval.filters import OPERATORS
from memplane.schema.committed import OnCommit
from memplane.schema.database import Database
from memplane.schema.identity import read_identity
from memplane.schema.migrate import check


class PostgresBackend:
    """Implements `StoreBackend`. The pool belongs to its creator unless `owns_database` says otherwise.

    `targets`: the projections that every change is announced to. `embedding`: the (model, revision) that new texts
    will be embedded with, kept beside them. `on_commit` learns what this process commits.
    """

    def __init__(
        self,
        database: Database,
        *,
        targets: Collection[Target],
        require_expected_version: bool = False,
        embedding: tuple[str, str] | None = None,
        on_commit: OnCommit | None = None,
        owns_database: bool = False,
    ) -> None:
        self._database = database
        self._owns_database = owns_database
        self._writing = Writing(database, frozenset(targets), require_expected_version, embedding, on_commit)
        self._backend_id: UUID | None = None

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(atomicBatches=True, strategies=(), filters=OPERATORS, orderFields=ORDER_FIELDS)

    @property
    def backend_id(self) -> UUID:
        """Known after `start()`."""
        if self._backend_id is None:
            raise RuntimeError("the backend is not started")
        return self._backend_id

    async def start(self) -> None:
        """Check that schema and identity fit. Raises `SchemaError`, `IdentityError`, `TargetUnavailable`."""
        await check(self._database)
        self._backend_id = await read_identity(self._database)

    async def close(self) -> None:
        if self._owns_database:
            await self._database.close()

    def scoped(self, scope: Scope) -> PostgresStore:
        """The store of one tenant and user. Raises INVALID_INPUT for a scope that cannot be stored."""
        check_scope_part(scope.tenant, "tenant")
        check_scope_part(scope.user, "user")
        return PostgresStore(self._writing, scope)
