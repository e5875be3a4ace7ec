"""How a store call meets the database: signals, repeated attempts, transactions that are whole or absent.

Errors of this store beside the contract's: `STORE_UNAVAILABLE` (the database is away, read-only, or too slow) and
`STORE_BUSY` (a change lost against concurrent ones too often). Anything unforeseen passes and becomes
MEMORY_BACKEND_ERROR in the node.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from memplane.errors import PluginError
from memplane.plugins.mysql.errors import LostRace, StoreAway
from memplane.plugins.mysql.pool import Pool, Session
from memplane.signal import Signal, race

T = TypeVar("T")
Work = Callable[[Session], Awaitable[T]]

ATTEMPTS: Final = 12
"""How often a change is tried. Locks are taken in one order, so real deadlocks are rare."""

_SNAPSHOT: Final = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"


class StartOver(Exception):  # noqa: N818 - an instruction to `changing`, never seen outside
    """What was read before the locks no longer holds: roll back and try again."""


async def reading(pool: Pool, signal: Signal | None, work: Work[T]) -> T:
    """Run one statement's work. An aborted signal or a cancelled task ends it, and its connection with it."""
    if signal is not None:
        signal.raise_if_aborted()
    return await race(_reading(pool, work), signal)


async def snapshot(pool: Pool, signal: Signal | None, work: Work[T]) -> T:
    """Run several statements that all see the database as it is now."""

    async def within(session: Session) -> T:
        await session.run(_SNAPSHOT)
        await session.run("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        return await _ended(session, work, "COMMIT")

    return await reading(pool, signal, within)


async def _reading(pool: Pool, work: Work[T]) -> T:
    # Connections may have died in the pool (a restarted server): a read is repeated on the next one.
    for attempt in range(pool.settings.pool_max + 1):
        reused = False
        try:
            async with pool.acquire() as session:
                reused = session.reused
                return await work(session)
        except (StoreAway, LostRace):
            if not reused or attempt == pool.settings.pool_max:
                break
    raise PluginError("STORE_UNAVAILABLE", "The store is unavailable")


async def changing(pool: Pool, signal: Signal | None, work: Work[T]) -> T:
    """Run `work` in a transaction, again from the start after a deadlock or `StartOver`. All of it or nothing."""
    if signal is not None:
        signal.raise_if_aborted()
    return await race(_changing(pool, work), signal)


async def _changing(pool: Pool, work: Work[T]) -> T:
    for attempt in range(ATTEMPTS):
        reused = False
        try:
            async with pool.acquire() as session:
                reused = session.reused
                await session.run("START TRANSACTION")
                result = await _ended(session, work, None)
                await _commit(session)
                return result
        except StartOver:
            continue
        except LostRace:
            # Whoever lost against each other must not meet again in step.
            await asyncio.sleep(random.uniform(0, 0.01 * 2 ** min(attempt, 6)))  # noqa: S311 - jitter
        except StoreAway:
            # Nothing was committed: an idle connection of a restarted server is no reason to fail.
            if not reused:
                raise PluginError("STORE_UNAVAILABLE", "The store is unavailable") from None
    raise PluginError("STORE_BUSY", "Too many concurrent changes of the same memories; try again")


async def _ended(session: Session, work: Work[T], end: str | None) -> T:
    """`work` within the open transaction; rolled back when it raises, its connection closed when that is cut short."""
    try:
        result = await work(session)
        if end is not None:
            await session.run(end)
    except Exception:
        if session.usable:
            try:
                await session.run("ROLLBACK")
            except BaseException:
                session.discard()
                raise
        raise
    except BaseException:
        session.discard()
        raise
    return result


async def _commit(session: Session) -> None:
    """COMMIT, which no cancellation cuts short: else nobody would know for a while whether it has happened."""
    commit = asyncio.ensure_future(session.run("COMMIT"))
    try:
        await asyncio.shield(commit)
    except asyncio.CancelledError:
        await asyncio.wait([commit])
        if commit.exception() is not None:
            session.discard()
        raise
    except (StoreAway, LostRace):
        session.discard()
        raise PluginError(
            "STORE_UNAVAILABLE", "The store became unavailable; the change may or may not have been stored"
        ) from None
