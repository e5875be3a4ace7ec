"""Connections to MySQL or MariaDB, bounded, each clean when the next caller gets it.

A connection on which a statement was cancelled, timed out or lost its server is closed, never given back: unread
answers would be taken for the next caller's. Text goes over as utf8mb4 whatever the server's defaults are; the SQL mode
is fixed, because escaping depends on it.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import asyncmy
from asyncmy.errors import MySQLError

from memplane.plugins.mysql.errors import StoreAway, is_lost, translated
from memplane.plugins.mysql.settings import MysqlSettings, read_address

SQL_MODE: Final = "STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"

Row = tuple[Any, ...]

# The driver logs the server's warnings, which quote values. Loggers are global, so this also holds for whoever else
# uses asyncmy in the process.
logging.getLogger("asyncmy").setLevel(logging.CRITICAL + 1)


class Session:
    """One connection in use. Values are always arguments, escaped by the driver for this connection's SQL mode."""

    def __init__(self, connection: Any, timeout: float) -> None:
        self.connection = connection
        self.usable = True
        self.reused = False
        self._timeout = timeout

    async def rows(self, statement: str, arguments: Sequence[object] = ()) -> list[Row]:
        """The rows of a query. Raises `StoreAway`, `LostRace`, `DuplicateKey`, `StatementRefused`."""
        return (await self._execute(statement, arguments))[0]

    async def run(self, statement: str, arguments: Sequence[object] = ()) -> int:
        """Execute; the number of affected rows. Raises as `rows` does."""
        return (await self._execute(statement, arguments))[1]

    async def next_number(self, statement: str, arguments: Sequence[object]) -> int:
        """Execute a statement with `LAST_INSERT_ID(…)`; that value."""
        return (await self._execute(statement, arguments))[2]

    async def _execute(self, statement: str, arguments: Sequence[object]) -> tuple[list[Row], int, int]:
        done = False
        try:
            # The cursor is not closed: that would read on what a cancelled statement has left.
            cursor = self.connection.cursor()
            async with asyncio.timeout(self._timeout):
                affected = await cursor.execute(statement, tuple(arguments))
                found = list(await cursor.fetchall()) if cursor.description else []
            done = True
            return found, affected, cursor.lastrowid or 0
        except MySQLError as error:
            # An error that the server answered leaves the connection in step.
            done = not is_lost(error)
            raise translated(error) from None
        except (TimeoutError, OSError, EOFError):
            raise StoreAway(sent=True) from None
        finally:
            self.usable = self.usable and done

    def discard(self) -> None:
        """Never use the connection again; the server rolls back what it had open."""
        self.usable = False


class Pool:
    """`start` opens the first connections; `acquire` waits for a free one at most `connect_timeout`."""

    def __init__(self, settings: MysqlSettings) -> None:
        self.settings = settings
        self._free = asyncio.Semaphore(settings.pool_max)
        self._idle: deque[Any] = deque()
        self._closed = False

    async def start(self) -> None:
        """Open `pool_min` connections. Raises `StoreAway`, `SettingsError`."""
        self._closed = False
        while len(self._idle) < self.settings.pool_min:
            self._idle.append(await self._connect())

    async def close(self) -> None:
        """Close what is idle now; what is in use is closed when it comes back. Idempotent."""
        self._closed = True
        while self._idle:
            await self._idle.popleft().ensure_closed()

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[Session]:
        """A connection for one caller. Raises `StoreAway` when there is none in time."""
        try:
            async with asyncio.timeout(self.settings.connect_timeout):
                await self._free.acquire()
        except TimeoutError:
            raise StoreAway(sent=False) from None
        try:
            session = await self._session()
            try:
                yield session
            finally:
                if session.usable and not self._closed:
                    self._idle.append(session.connection)
                else:
                    session.connection.close()
        finally:
            self._free.release()

    async def _session(self) -> Session:
        while self._idle:
            connection = self._idle.pop()
            if connection.connected:
                session = Session(connection, self.settings.statement_timeout)
                session.reused = True
                return session
            connection.close()
        return Session(await self._connect(), self.settings.statement_timeout)

    async def _connect(self) -> Any:
        address = read_address(self.settings)
        connection = None
        try:
            async with asyncio.timeout(self.settings.connect_timeout):
                connection = asyncmy.Connection(  # type: ignore[no-untyped-call]
                    host=address.host,
                    port=address.port,
                    user=address.user,
                    password=address.password,
                    database=address.database,
                    charset="utf8mb4",
                    autocommit=True,
                    binary_prefix=True,
                    connect_timeout=max(1, round(self.settings.connect_timeout)),
                    ssl=self._tls(),
                )
                await connection.connect()
                session = Session(connection, self.settings.statement_timeout)
                await session.run("SET SESSION sql_mode = %s", [SQL_MODE])
                await session.run("SET SESSION time_zone = '+00:00'")
                await session.run("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
                await session.run(
                    f"SET SESSION innodb_lock_wait_timeout = {max(1, round(self.settings.statement_timeout))}"
                )
                return connection
        except (MySQLError, TimeoutError, OSError, EOFError):
            if connection is not None:
                connection.close()
            raise StoreAway(sent=False) from None
        except BaseException:
            if connection is not None:
                connection.close()
            raise

    def _tls(self) -> ssl.SSLContext | None:
        if not self.settings.tls:
            return None
        return ssl.create_default_context(cafile=self.settings.tls_ca_file)
