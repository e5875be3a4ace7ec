"""The state of every dependency, asked side by side with a short deadline and kept for a second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from memplane.api.plane import Check
from memplane.api.supervise import Supervisor
from memplane.errors import IdentityError, SchemaError, SettingsError, TargetUnavailable
from memplane.schema.database import Database
from memplane.schema.identity import read_identity
from memplane.schema.migrate import check as check_schema

DEADLINE = 2.0
"""Seconds one check may take; a kubelet probe gives up soon after."""
KEEP = 1.0
"""Seconds an outcome is kept, so that probes and status calls do not add up to load."""


class Probed(Protocol):
    """A connection that can tell whether its server answers."""

    async def healthy(self) -> bool: ...


class Truth(Protocol):
    """Where memories are."""

    @property
    def names(self) -> Sequence[str]:
        """The checks that `ask` answers, in the order in which they depend on each other."""
        ...

    async def ask(self) -> Mapping[str, Check]: ...


class ServiceHealth:
    """The checks of the truth; each configured projection; each supervised part that waits or was refused."""

    def __init__(
        self,
        truth: Truth,
        projections: Mapping[str, Probed],
        supervisor: Supervisor,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._truth = truth
        self._projections = projections
        self._supervisor = supervisor
        self._clock = clock
        self._lock = asyncio.Lock()
        self._kept: dict[str, Check] = {}
        self._at = float("-inf")

    @property
    def decisive(self) -> Sequence[str]:
        return self._truth.names

    async def checks(self) -> Mapping[str, Check]:
        async with self._lock:
            if self._clock() - self._at >= KEEP:
                self._kept = await self._ask()
                self._at = self._clock()
            return self._kept

    async def _ask(self) -> dict[str, Check]:
        asked = [_bounded(_ask_projection(probed)) for probed in self._projections.values()]
        truth, answers = await asyncio.gather(self._truth.ask(), asyncio.gather(*asked))
        found = {**truth, **dict(zip(self._projections, answers, strict=True))}
        for name, part in self._supervisor.parts.items():
            if not part.check.ok:
                found[name] = part.check
        return found


class PostgresTruth:
    """Memories in PostgreSQL: `postgresql` and `schema`."""

    names = ("postgresql", "schema")

    def __init__(self, database: Database) -> None:
        self._database = database

    async def ask(self) -> Mapping[str, Check]:
        reached = False

        async def ask() -> Check:
            nonlocal reached
            async with self._database.acquire() as connection:
                await connection.fetchval("SELECT 1")
            reached = True
            level = await check_schema(self._database)
            await read_identity(self._database)
            return Check(True, f"level {level}")

        schema = await _bounded(ask())
        if reached:
            return {"postgresql": Check(True), "schema": schema}
        return {"postgresql": schema, "schema": Check(False, "PostgreSQL is away")}


class PluginTruth:
    """Memories in another plugin's store: `store`. `refusal` tells why the process does not serve it yet."""

    names = ("store",)

    def __init__(self, store: object, refusal: Callable[[], str | None]) -> None:
        self._store = store
        self._refusal = refusal

    async def ask(self) -> Mapping[str, Check]:
        refusal = self._refusal()
        if refusal is not None:
            return {"store": Check(False, refusal)}
        healthy: Callable[[], Awaitable[bool]] | None = getattr(self._store, "healthy", None)
        # A store that cannot tell (a file, say) is well once it has started.
        return {"store": Check(True) if healthy is None else await _bounded(_ask_store(healthy))}


async def _ask_store(healthy: Callable[[], Awaitable[bool]]) -> Check:
    return Check(True) if await healthy() else Check(False, "it does not answer")


class PostgresBeside:
    """PostgreSQL beside another store, where recovery tasks are: listed, nothing depends on it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def healthy(self) -> bool:
        async with self._database.acquire() as connection:
            return await connection.fetchval("SELECT true") is True


async def _ask_projection(probed: Probed) -> Check:
    return Check(True) if await probed.healthy() else Check(False, "it does not answer")


async def _bounded(asked: Awaitable[Check]) -> Check:
    try:
        return await asyncio.wait_for(asked, DEADLINE)
    except TimeoutError:
        return Check(False, f"no answer within {DEADLINE:g} s")
    except TargetUnavailable as error:
        return Check(False, error.reason)
    except (SchemaError, IdentityError, SettingsError) as error:
        return Check(False, str(error))
    except Exception as error:  # noqa: BLE001 - a driver may raise anything while its server goes down
        return Check(False, f"it failed ({type(error).__name__})")
