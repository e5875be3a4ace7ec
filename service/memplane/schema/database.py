"""One process's access to the truth: a bounded pool that survives restarts and rotations of its server.

Nothing here depends on session state, so a transaction-pooling proxy may stand in between
(`prepared_statements=False`); LISTEN uses a connection of its own (`connect_direct`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import asyncpg

from memplane.errors import SettingsError, TargetUnavailable
from memplane.settings import PostgresSettings

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

    Connection: TypeAlias = asyncpg.Connection[Any] | PoolConnectionProxy[Any]
else:
    Connection: TypeAlias = Any

CONNECT_ERRORS: tuple[type[BaseException], ...] = (
    OSError,
    asyncio.TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.ReadOnlySQLTransactionError,
)
"""What a caller may wait out: the server is away, starting, full, or a read-only standby."""


class Database:
    """A pool on the truth. `sql(text)` puts the quoted schema where `{schema}` stands."""

    def __init__(self, settings: PostgresSettings, *, application_name: str = "memplane") -> None:
        self.settings = settings
        self.application_name = application_name
        self._schema = f'"{settings.schema_name}"'
        self._pool: asyncpg.Pool[Any] | None = None
        self._opening = asyncio.Lock()

    @property
    def schema(self) -> str:
        return self._schema

    def sql(self, text: str) -> str:
        """The statement with the schema's quoted name in place of every `{schema}`."""
        return text.replace("{schema}", self._schema)

    def dsn(self) -> str:
        """The connection URL; the file is read on every call, so that a rotated Secret takes effect."""
        if self.settings.dsn_file is not None:
            try:
                return self.settings.dsn_file.read_text(encoding="utf-8").strip()
            except OSError as error:
                raise SettingsError(f"postgres.dsn_file cannot be read: {error.strerror}") from None
        if self.settings.dsn is None:
            raise SettingsError("postgres.dsn or postgres.dsn_file is required")
        return self.settings.dsn.get_secret_value()

    async def open(self) -> None:
        """Open the pool. Raises `TargetUnavailable` when the server does not answer. Idempotent."""
        async with self._opening:
            if self._pool is not None:
                return
            try:
                self._pool = await asyncpg.create_pool(
                    self.dsn(),
                    min_size=min(self.settings.pool_min, self.settings.pool_max),
                    max_size=self.settings.pool_max,
                    timeout=self.settings.connect_timeout,
                    command_timeout=self.settings.statement_timeout,
                    statement_cache_size=512 if self.settings.prepared_statements else 0,
                    server_settings=self._server_settings(),
                )
            except (asyncpg.InvalidPasswordError, asyncpg.InvalidAuthorizationSpecificationError):
                raise TargetUnavailable("postgresql", "the credentials are refused") from None
            except CONNECT_ERRORS:
                raise TargetUnavailable("postgresql", "it does not accept connections") from None
            except asyncpg.InvalidCatalogNameError:
                raise TargetUnavailable("postgresql", "the database does not exist") from None
            except ValueError:
                raise SettingsError("postgres.dsn is not a valid postgresql:// URL") from None

    def _server_settings(self) -> dict[str, str]:
        # A generic plan made while a table was small is kept when it has grown, and scans it whole. Behind a
        # transaction-pooling proxy (which refuses these settings) statements are unnamed and always planned anew.
        if not self.settings.prepared_statements:
            return {}
        return {"application_name": self.application_name, "plan_cache_mode": "force_custom_plan"}

    async def connect_direct(self) -> asyncpg.Connection[Any]:
        """A connection outside the pool, for LISTEN and other session state; the caller closes it."""
        direct = self.settings.direct_dsn
        try:
            return await asyncpg.connect(
                direct.get_secret_value() if direct else self.dsn(), timeout=self.settings.connect_timeout
            )
        except (*CONNECT_ERRORS, asyncpg.InvalidAuthorizationSpecificationError):
            raise TargetUnavailable("postgresql", "it does not accept connections") from None

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[Connection]:
        """A connection from the pool. Raises `TargetUnavailable` when none can be had in time."""
        if self._pool is None:
            await self.open()
        assert self._pool is not None
        try:
            connection = await self._pool.acquire(timeout=self.settings.connect_timeout)
        except (asyncpg.InvalidPasswordError, asyncpg.InvalidAuthorizationSpecificationError):
            await self._reopen()
            raise TargetUnavailable("postgresql", "the credentials are refused") from None
        except CONNECT_ERRORS:
            raise TargetUnavailable("postgresql", "it does not accept connections") from None
        try:
            yield connection
        finally:
            await self._pool.release(connection)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """A connection inside a READ COMMITTED transaction."""
        async with self.acquire() as connection, connection.transaction():
            yield connection

    async def _reopen(self) -> None:
        """Drop the pool, so that the next use connects with re-read credentials."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.terminate()

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()
