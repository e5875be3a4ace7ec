"""Neo4j as one process sees it: one driver, credentials re-read after a refusal, no driver text to callers or logs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from memplane.errors import SettingsError, TargetUnavailable
from memplane.projections.errors import ProjectionRefused
from memplane.settings import Neo4jSettings

PROBE_SECONDS = 2.0
"""Deadline of the health call."""

CREDENTIALS = "the credentials are refused"


class Neo4jConnection:
    """A connection that opens on first use and survives restarts of the server and rotations of the password."""

    def __init__(self, settings: Neo4jSettings) -> None:
        if settings.uri is None:
            raise SettingsError("neo4j.uri is required")
        self.settings = settings
        self._driver: Any = None
        self._suspect = False

    def _password(self) -> str:
        if self.settings.password_file is not None:
            try:
                return self.settings.password_file.read_text(encoding="utf-8").strip()
            except OSError as error:
                raise SettingsError(f"neo4j.password_file cannot be read: {error.strerror}") from None
        return self.settings.password.get_secret_value() if self.settings.password is not None else ""

    def _open_driver(self) -> Any:
        import neo4j
        from neo4j import AsyncGraphDatabase
        from neo4j.auth_management import AsyncAuthManagers
        from neo4j.exceptions import ConfigurationError

        logging.getLogger("neo4j").setLevel(logging.CRITICAL + 1)

        async def credentials() -> Any:
            # The driver asks again after the server refused what it got, so a rotated file takes effect.
            return neo4j.basic_auth(self.settings.user, self._password())

        try:
            return AsyncGraphDatabase.driver(
                str(self.settings.uri),
                auth=AsyncAuthManagers.basic(credentials) if self._password() else None,
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
            await self._attempt([("RETURN 1", {})], PROBE_SECONDS, read=True)
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
        """
        rows = await self.run_all([(query, parameters or {})], timeout=timeout, read=read)
        return rows[0]

    async def run_all(
        self,
        queries: list[tuple[str, Mapping[str, Any]]],
        *,
        timeout: float | None = None,
        read: bool = False,
    ) -> list[list[dict[str, Any]]]:
        """Several queries in one transaction, in order; the records of each. Errors as in `run`.

        After a failure the next call first makes the two-second health call: the driver would go on trying until the
        whole deadline is used up.
        """
        deadline = self.settings.timeout if timeout is None else timeout
        if self._suspect and not await self.healthy():
            raise TargetUnavailable("neo4j", "it does not answer")
        try:
            return await self._attempt(queries, deadline, read=read)
        except TargetUnavailable:
            self._suspect = True
            raise

    async def _attempt(
        self, queries: list[tuple[str, Mapping[str, Any]]], deadline: float, *, read: bool
    ) -> list[list[dict[str, Any]]]:
        if self._driver is None:
            self._driver = self._open_driver()
        try:
            async with asyncio.timeout(deadline):
                return await _in_transaction(self._driver, self.settings.database, queries, deadline, read)
        except TimeoutError:
            raise TargetUnavailable("neo4j", f"no answer within {deadline:g} s") from None


async def _in_transaction(
    driver: Any, database: str, queries: list[tuple[str, Mapping[str, Any]]], deadline: float, read: bool
) -> list[list[dict[str, Any]]]:
    import neo4j
    from neo4j import exceptions

    async def work(transaction: Any) -> list[list[dict[str, Any]]]:
        results = []
        for query, parameters in queries:
            result = await transaction.run(query, parameters)
            results.append([dict(record) async for record in result])
        return results

    work = neo4j.unit_of_work(timeout=deadline)(work)
    try:
        async with driver.session(database=database) as session:
            results: list[list[dict[str, Any]]] = await (
                session.execute_read(work) if read else session.execute_write(work)
            )
            return results
    except exceptions.AuthError:
        raise TargetUnavailable("neo4j", CREDENTIALS) from None
    except (exceptions.DriverError, exceptions.TransientError, OSError):
        raise TargetUnavailable("neo4j", "it does not answer") from None
    except exceptions.Neo4jError as error:
        if str(error.code).startswith(("Neo.TransientError", "Neo.DatabaseError.Database")):
            raise TargetUnavailable("neo4j", "it is not ready") from None
        raise ProjectionRefused("neo4j", str(error.code)) from None
