"""Neo4j as one process sees it: one driver, credentials re-read after a refusal, no driver text to callers or logs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from memplane.errors import SettingsError, TargetUnavailable
from memplane.projections.address import Address, read_address
from memplane.projections.errors import ProjectionRefused, TargetTimeout
from memplane.settings import Neo4jSettings

PROBE_SECONDS = 2.0
"""Deadline of the health call."""

T = TypeVar("T")

CREDENTIALS = "the credentials are refused"


class GraphTransaction:
    """Runs the queries of one transaction. Neither commits nor rolls back; whoever made it does."""

    def __init__(self, transaction: Any) -> None:
        self._transaction = transaction

    async def rows(self, query: str, parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The records of a query, as mappings."""
        result = await self._transaction.run(query, parameters)
        return [dict(record) async for record in result]

    async def merged(self, query: str, parameters: Mapping[str, Any]) -> tuple[list[dict[str, Any]], int]:
        """The records of a query, and how many nodes it has created."""
        result = await self._transaction.run(query, parameters)
        rows = [dict(record) async for record in result]
        summary = await result.consume()
        return rows, int(summary.counters.nodes_created)


class Neo4jConnection:
    """A connection that opens on first use and survives restarts of the server and rotations of the password."""

    def __init__(self, settings: Neo4jSettings) -> None:
        read_address("neo4j", settings.uri, settings.uri_file)
        self.settings = settings
        self._driver: Any = None
        self._suspect = False

    def _password(self) -> str:
        if self.settings.password_file is not None:
            try:
                return self.settings.password_file.read_text(encoding="utf-8").strip()
            except OSError as error:
                raise SettingsError(f"neo4j.password_file cannot be read: {error.strerror}") from None
        if self.settings.password is not None:
            return self.settings.password.get_secret_value()
        return self._address().password

    def _address(self) -> Address:
        return read_address("neo4j", self.settings.uri, self.settings.uri_file)

    def _credentials(self) -> tuple[str, str]:
        return self._address().user or self.settings.user, self._password()

    def _open_driver(self) -> Any:
        import neo4j
        from neo4j import AsyncGraphDatabase
        from neo4j.auth_management import AsyncAuthManager
        from neo4j.exceptions import ConfigurationError

        logging.getLogger("neo4j").setLevel(logging.CRITICAL + 1)

        credentials = self._credentials

        class Current(AsyncAuthManager):
            """What the files say now; a refused password is tried again only if they say something else by then."""

            async def get_auth(self) -> neo4j.Auth:
                return neo4j.basic_auth(*credentials())

            async def handle_security_exception(self, auth: Any, error: Any) -> bool:
                return bool(auth != await self.get_auth())

        try:
            return AsyncGraphDatabase.driver(
                self._address().uri,
                auth=Current() if self._password() else None,
                connection_timeout=self.settings.timeout,
                connection_acquisition_timeout=self.settings.timeout,
                max_transaction_retry_time=self.settings.timeout,
                keep_alive=True,
                notifications_min_severity="OFF",
                user_agent="memplane",
            )
        except (ConfigurationError, ValueError):
            raise SettingsError("neo4j.uri is not a valid bolt:// or neo4j:// URL") from None

    async def open(self) -> None:
        """Connect and make one call. Raises `TargetUnavailable`. Idempotent."""
        if self._driver is None:
            self._driver = self._open_driver()
        await self.run("RETURN 1")

    async def close(self) -> None:
        """Close the driver. Idempotent; a later call opens it again."""
        driver, self._driver = self._driver, None
        if driver is not None:
            await driver.close()

    async def healthy(self) -> bool:
        """Whether the server answers a cheap call within two seconds; never raises."""
        try:
            await self._attempt(_ping, PROBE_SECONDS, read=False)
        except (TargetUnavailable, ProjectionRefused, SettingsError):
            return False
        self._suspect = False
        return True

    async def run(
        self,
        query: str,
        parameters: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        read: bool = False,
    ) -> list[dict[str, Any]]:
        """One query in one retried transaction; its records as mappings. `timeout` in seconds covers the retries.

        Raises `TargetUnavailable` and `ProjectionRefused`. `query` is a text of this package, never of a caller.
        `read` lets a cluster answer from a follower that may lag; leave it out for a strong read.
        """

        async def work(transaction: GraphTransaction) -> list[dict[str, Any]]:
            return await transaction.rows(query, parameters or {})

        return await self.transact(work, timeout=timeout, read=read)

    async def read_once(
        self, query: str, parameters: Mapping[str, Any], *, timeout: float | None = None
    ) -> list[dict[str, Any]]:
        """Like `run` with `read`, but in an auto-commit transaction that is not retried: one round trip instead of two.

        For searches, whose callers would rather do without the graph than wait for it.
        """
        deadline = self.settings.timeout if timeout is None else timeout
        if self._suspect and not await self.healthy():
            raise TargetUnavailable("neo4j", "it does not answer")
        if self._driver is None:
            self._driver = self._open_driver()
        try:
            async with asyncio.timeout(deadline), _session(self._driver, self.settings.database) as session:
                return await _auto_commit(session, query, parameters, deadline)
        except TimeoutError:
            self._suspect = True
            raise TargetTimeout("neo4j", f"no answer within {deadline:g} s") from None
        except TargetUnavailable:
            self._suspect = True
            raise

    async def transact(
        self, work: Callable[[GraphTransaction], Awaitable[T]], *, timeout: float | None = None, read: bool = False
    ) -> T:
        """What `work` returns, given a transaction to run queries in; errors as in `run`.

        `work` may be called again after a transient failure, so it must not change anything but the graph. After a
        failure the next call first makes the two-second health call: the driver would go on trying until the whole
        deadline is used up.
        """
        deadline = self.settings.timeout if timeout is None else timeout
        if self._suspect and not await self.healthy():
            raise TargetUnavailable("neo4j", "it does not answer")
        try:
            return await self._attempt(work, deadline, read=read)
        except TargetUnavailable:
            self._suspect = True
            raise

    async def _attempt(self, work: Callable[[GraphTransaction], Awaitable[T]], deadline: float, *, read: bool) -> T:
        if self._driver is None:
            self._driver = self._open_driver()
        try:
            async with asyncio.timeout(deadline):
                return await _in_transaction(self._driver, self.settings.database, work, deadline, read)
        except TimeoutError:
            raise TargetTimeout("neo4j", f"no answer within {deadline:g} s") from None


async def _ping(transaction: GraphTransaction) -> None:
    await transaction.rows("RETURN 1", {})


async def _in_transaction(
    driver: Any, database: str, work: Callable[[GraphTransaction], Awaitable[T]], deadline: float, read: bool
) -> T:
    import neo4j

    async def unit(transaction: Any) -> T:
        return await work(GraphTransaction(transaction))

    unit = neo4j.unit_of_work(timeout=deadline)(unit)
    async with _session(driver, database) as session:
        answer: T = await (session.execute_read(unit) if read else session.execute_write(unit))
        return answer


async def _auto_commit(
    session: Any, query: str, parameters: Mapping[str, Any], deadline: float
) -> list[dict[str, Any]]:
    import neo4j

    result = await session.run(neo4j.Query(query, timeout=deadline), parameters)
    return [dict(record) async for record in result]


@asynccontextmanager
async def _session(driver: Any, database: str) -> AsyncIterator[Any]:
    """A session whose driver errors come out as ours."""
    from neo4j import exceptions

    try:
        async with driver.session(database=database) as session:
            yield session
    except exceptions.AuthError:
        raise TargetUnavailable("neo4j", CREDENTIALS) from None
    except (exceptions.DriverError, exceptions.TransientError, OSError):
        raise TargetUnavailable("neo4j", "it does not answer") from None
    except exceptions.Neo4jError as error:
        if str(error.code).startswith(_UNAVAILABLE):
            raise TargetUnavailable("neo4j", "it is not ready") from None
        raise ProjectionRefused("neo4j", str(error.code)) from None


_UNAVAILABLE = (
    *("Neo.TransientError", "Neo.DatabaseError.Database", "Neo.ClientError.Cluster"),
    "Neo.ClientError.Security",  # a rotated password, or the pause that the server makes after wrong ones
)
