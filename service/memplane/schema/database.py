"""One process's access to the truth: a bounded pool that survives restarts and rotations of its server.

Nothing here depends on session state, so a transaction-pooling proxy may stand in between
(`prepared_statements=False`); LISTEN uses a connection of its own (`connect_direct`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import asyncpg

from memplane.errors import SettingsError, TargetUnavailable
from memplane.schema.notifier import Note, Notifier
from memplane.schema.steady_reads import SERVER_SETTINGS, SteadyReads
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
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.ReadOnlySQLTransactionError,
)
"""What a caller may wait out: the server is away, starting, full, or a read-only standby."""


DEAD_CONNECTION: tuple[type[BaseException], ...] = (
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    ConnectionError,
)
"""What using a connection raises that died in the pool. `InternalClientError`: the driver has read the server's
goodbye, but not yet the end of the stream."""


STEADY_ERRORS: tuple[type[BaseException], ...] = (*CONNECT_ERRORS, SettingsError, ValueError)
"""After one of these the pool is asked instead, which says what there is to say."""


def _drop(connection: Connection) -> None:
    """End a connection without a word to the server; the pool replaces it."""
    # A proxy whose connection the pool has noticed to be lost refuses every call.
    with suppress(asyncpg.InterfaceError):
        connection.terminate()


async def _keep_session(_: Connection) -> None:
    """Nothing to reset: no session state is ever set on a pooled connection.

    asyncpg itself still ends an open transaction and drops listeners; its default RESET ALL would cost every call one
    more round trip.
    """


CLOSE_SECONDS: Final = 10.0
"""How long `close` waits for calls in flight and for the server's goodbye."""


class Database:
    """A pool on the truth. `sql(text)` puts the quoted schema where `{schema}` stands."""

    def __init__(self, settings: PostgresSettings, *, application_name: str = "memplane") -> None:
        self.settings = settings
        self.application_name = application_name
        self._schema = f'"{settings.schema_name}"'
        self._pool: asyncpg.Pool[Any] | None = None
        self._opening = asyncio.Lock()
        self._notifier = Notifier(self._notify, errors=(TargetUnavailable, asyncpg.PostgresError, *CONNECT_ERRORS))
        self._notes: dict[int, set[Note]] = {}
        self._steady: SteadyReads | None = None

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
                    reset=_keep_session,
                )
            except (asyncpg.InvalidPasswordError, asyncpg.InvalidAuthorizationSpecificationError):
                raise TargetUnavailable("postgresql", "the credentials are refused") from None
            except asyncpg.ClientConfigurationError:
                # It is an InterfaceError too, so it has to be looked at first.
                raise SettingsError("postgres.dsn is not a valid postgresql:// URL") from None
            except CONNECT_ERRORS:
                raise TargetUnavailable("postgresql", "it does not accept connections") from None
            except asyncpg.InvalidCatalogNameError:
                raise TargetUnavailable("postgresql", "the database does not exist") from None
            except ValueError:
                raise SettingsError("postgres.dsn is not a valid postgresql:// URL") from None
            if self._steady is None and self.settings.prepared_statements and self.settings.steady_reads:
                self._steady = SteadyReads(self._connect_steady, self.settings.steady_reads, errors=STEADY_ERRORS)

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
        pool = self._pool
        assert pool is not None
        try:
            # A timeout of our own: the pool's would put every call into a task.
            async with asyncio.timeout(self.settings.connect_timeout):
                connection = await pool.acquire()
        except (asyncpg.InvalidPasswordError, asyncpg.InvalidAuthorizationSpecificationError):
            await self._reopen()
            raise TargetUnavailable("postgresql", "the credentials are refused") from None
        except CONNECT_ERRORS:
            raise TargetUnavailable("postgresql", "it does not accept connections") from None
        try:
            yield connection
        except CONNECT_ERRORS:
            # A connection that met one of these may be half dead, or lead to a demoted primary: never used again.
            _drop(connection)
            raise
        finally:
            await pool.release(connection)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """A connection inside a READ COMMITTED transaction.

        After a restart of the server the pool is full of dead connections; as long as not even BEGIN got through,
        nothing was sent, and the next one is tried.
        """
        for remaining in range(self.settings.pool_max, -1, -1):
            notes: set[Note] = set()
            async with AsyncExitStack() as stack:
                connection = await stack.enter_async_context(self.acquire())
                try:
                    # Named, because a server's default may be another: after a lock, reads must see what is new.
                    await stack.enter_async_context(connection.transaction(isolation="read_committed"))
                except DEAD_CONNECTION:
                    if remaining == 0:
                        raise
                    _drop(connection)
                    continue
                self._notes[id(connection)] = notes
                stack.callback(self._notes.pop, id(connection))
                yield connection
            self._notifier.add(notes)
            return

    def notify_after_commit(self, connection: Connection, channel: str, payloads: Collection[str]) -> None:
        """Notify `channel` once the `transaction()` of this connection has committed, and never if it does not.

        A hint: it may get lost, and equal ones of several transactions may become one.
        """
        self._notes[id(connection)].update((channel, payload) for payload in payloads)

    async def _notify(self, notes: Collection[Note]) -> None:
        channels, payloads = zip(*sorted(notes), strict=True)
        async with self.acquire() as connection:
            await connection.execute(
                "SELECT pg_notify(channel, payload) FROM unnest($1::text[], $2::text[]) AS n (channel, payload)",
                list(channels),
                list(payloads),
            )

    async def read(self, statement: str, *arguments: object) -> list[Any]:
        """The rows of a read whose plan depends on no statistics: by primary key, other conditions behind OFFSET 0.

        Planned once, not anew for each execution (`steady_reads.py`). Raises what `acquire` and asyncpg raise; a
        connection that died in the pool may still be among them.
        """
        if self._steady is not None:
            rows = await self._steady.fetch(statement, arguments)
            if rows is not None:
                return rows
        async with self.acquire() as connection:
            return list(await connection.fetch(statement, *arguments))

    async def _connect_steady(self) -> asyncpg.Connection[Any]:
        return await asyncpg.connect(
            self.dsn(),
            timeout=self.settings.connect_timeout,
            command_timeout=self.settings.statement_timeout,
            server_settings={"application_name": self.application_name, **SERVER_SETTINGS},
        )

    async def _reopen(self) -> None:
        """Drop the pool, so that the next use connects with re-read credentials."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.terminate()

    async def close(self) -> None:
        """Close the pool; connections that do not end in time are dropped. Idempotent."""
        if self._steady is not None:
            await self._steady.close()
            self._steady = None
        if self._pool is not None:
            await self._notifier.close()
        pool, self._pool = self._pool, None
        if pool is None:
            return
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await pool.close()
        except CONNECT_ERRORS:
            pool.terminate()
