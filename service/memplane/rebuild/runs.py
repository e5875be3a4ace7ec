"""The record of rebuilds: `rebuild_run`. At most one per target is unfinished, and one process at a time holds it.

The holder is a token; it renews its hold every few seconds, and whatever it records is fenced by the token. So a
process that was killed is replaced as soon as its hold has run out, and one that was only asleep records nothing.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from memplane.errors import MemplaneError, TargetUnavailable
from memplane.outbox.events import Target
from memplane.outbox.patience import DATABASE_ERRORS
from memplane.rebuild.errors import RebuildLost, RebuildRefused
from memplane.rebuild.report import Report, Stage
from memplane.schema.database import Connection, Database
from memplane.signal import Signal

FIRST_ID = -(2**62)
"""Below every id: where each stage begins."""

HOLD_SECONDS = 15.0
"""How long a process that says nothing keeps its rebuild."""

_UNFINISHED = """
SELECT id, stage, generation_id, position, done, total, resumed, held_by,
       GREATEST(extract(epoch FROM held_until - statement_timestamp())::float8, 0) AS held
FROM {schema}.rebuild_run WHERE target = $1 AND state = 'unfinished' FOR UPDATE
"""

_INSERT = """
INSERT INTO {schema}.rebuild_run (target, state, stage, generation_id, position, holder, held_by, held_until)
VALUES ($1, 'unfinished', $2, $3, $4, $5, $6, statement_timestamp() + $7::float8 * interval '1 second')
RETURNING id
"""

_TAKE = """
UPDATE {schema}.rebuild_run
SET holder = $2, held_by = $3, held_until = statement_timestamp() + $4::float8 * interval '1 second',
    resumed = resumed + 1, error = NULL
WHERE id = $1
"""

_RENEW = """
UPDATE {schema}.rebuild_run SET held_until = statement_timestamp() + $3::float8 * interval '1 second'
WHERE id = $1 AND holder = $2 AND state = 'unfinished' RETURNING id
"""

_SAVE = """
UPDATE {schema}.rebuild_run
SET stage = $3, position = $4, done = $5, total = $6, updated_at = statement_timestamp()
WHERE id = $1 AND holder = $2 AND state = 'unfinished' RETURNING id
"""

_FINISH = """
UPDATE {schema}.rebuild_run
SET state = 'completed', stage = 'done', holder = NULL, held_until = NULL, error = NULL,
    updated_at = statement_timestamp(), finished_at = statement_timestamp()
WHERE id = $1 AND holder = $2 AND state = 'unfinished' RETURNING id
"""

_LET_GO = """
UPDATE {schema}.rebuild_run SET holder = NULL, held_until = NULL, error = $3, updated_at = statement_timestamp()
WHERE id = $1 AND holder = $2 AND state = 'unfinished'
"""

_ABORT = """
UPDATE {schema}.rebuild_run
SET state = 'aborted', holder = NULL, held_until = NULL, updated_at = statement_timestamp(),
    finished_at = statement_timestamp()
WHERE target = $1 AND state = 'unfinished' RETURNING id, generation_id, stage
"""


@dataclass(slots=True)
class Run:
    """A rebuild as this process holds it; `stage`, `position`, `done` and `total` are as they were saved last."""

    id: int
    target: Target
    holder: UUID
    stage: Stage
    generation_id: int | None = None
    position: int = FIRST_ID
    done: int = 0
    total: int = 0
    resumed: int = 0


async def unfinished(connection: Connection, database: Database, target: Target) -> Mapping[str, Any] | None:
    """The unfinished rebuild of the target, locked; None without one.

    Raises `RebuildRefused` when another process holds it.
    """
    row: Mapping[str, Any] | None = await connection.fetchrow(database.sql(_UNFINISHED), target.value)
    if row is not None and row["held"]:
        raise RebuildRefused(
            f"A rebuild of {target} is running ({row['held_by']}, stage {row['stage']}). Two at once would undo each "
            f"other. If its process was killed, this command takes the rebuild up again in {row['held']:.0f} s"
        )
    return row


async def take_up(connection: Connection, database: Database, target: Target, row: Mapping[str, Any]) -> Run:
    """Hold an unfinished rebuild that nobody holds; `row` is what `unfinished` gave in this transaction."""
    holder = uuid4()
    await connection.execute(database.sql(_TAKE), row["id"], holder, _name(), HOLD_SECONDS)
    return Run(
        row["id"],
        target,
        holder,
        Stage(row["stage"]),
        row["generation_id"],
        row["position"],
        row["done"],
        row["total"],
        row["resumed"] + 1,
    )


async def begin(
    connection: Connection, database: Database, target: Target, stage: Stage, generation_id: int | None = None
) -> Run:
    """A new rebuild, held by this process."""
    holder = uuid4()
    run_id = await connection.fetchval(
        database.sql(_INSERT), target.value, stage.value, generation_id, FIRST_ID, holder, _name(), HOLD_SECONDS
    )
    return Run(int(run_id), target, holder, stage, generation_id)


async def save(database: Database, run: Run, connection: Connection | None = None) -> None:
    """Record how far it is. Raises `RebuildLost`."""
    arguments = (run.id, run.holder, run.stage.value, run.position, run.done, run.total)
    if connection is not None:
        saved = await connection.fetchval(database.sql(_SAVE), *arguments)
    else:
        async with database.acquire() as own:
            saved = await own.fetchval(database.sql(_SAVE), *arguments)
    if saved is None:
        raise RebuildLost(run.id)


async def enter(database: Database, run: Run, stage: Stage, connection: Connection | None = None) -> None:
    """The next stage begins, from the first id. Raises `RebuildLost`."""
    run.stage, run.position, run.done, run.total = stage, FIRST_ID, 0, 0
    await save(database, run, connection)


async def finish(database: Database, run: Run, connection: Connection | None = None) -> None:
    """It is complete. Raises `RebuildLost`."""
    if connection is None:
        async with database.acquire() as own:
            await finish(database, run, own)
        return
    if await connection.fetchval(database.sql(_FINISH), run.id, run.holder) is None:
        raise RebuildLost(run.id)
    run.stage = Stage.DONE


async def abort(connection: Connection, database: Database, target: Target) -> Mapping[str, Any] | None:
    """End the unfinished rebuild, whoever holds it; None without one."""
    row: Mapping[str, Any] | None = await connection.fetchrow(database.sql(_ABORT), target.value)
    return row


@asynccontextmanager
async def held(database: Database, run: Run, signal: Signal | None) -> AsyncIterator[Signal]:
    """Renew the hold while the block runs; the signal aborts with `signal`, or with `RebuildLost`.

    However the block ends, the hold is given back, with the reason if it ends with an error.
    """
    lost = Signal()
    both = Signal.any(signal, lost)
    beat = asyncio.create_task(_beat(database, run, lost), name="memplane-rebuild-hold")
    reason: str | None = None
    try:
        yield both
    except MemplaneError as error:
        reason = str(error)
        raise
    except DATABASE_ERRORS as error:
        reason = type(error).__name__
        raise TargetUnavailable("postgresql", f"it does not serve ({reason})") from None
    except BaseException as error:
        reason = type(error).__name__
        raise
    finally:
        both.release()
        beat.cancel()
        await asyncio.gather(beat, return_exceptions=True)
        if run.stage is not Stage.DONE:
            await _let_go(database, run, reason)


async def carry_out(
    database: Database, run: Run, report: Report, go: Callable[[Signal], Awaitable[bool]], signal: Signal | None
) -> None:
    """Do the stages that are left under the hold. `go` returns False when its signal stopped it: `cancelled`.

    Raises `RebuildLost` when it was stopped because another process holds the rebuild, and whatever `go` raises.
    """
    async with held(database, run, signal) as stop:
        if not await go(stop):
            report.state = "cancelled"
            if isinstance(stop.reason, RebuildLost):
                raise stop.reason


async def _beat(database: Database, run: Run, lost: Signal) -> None:
    while True:
        await asyncio.sleep(HOLD_SECONDS / 3)
        try:
            async with database.acquire() as connection:
                ours = await connection.fetchval(database.sql(_RENEW), run.id, run.holder, HOLD_SECONDS)
        except DATABASE_ERRORS:
            # It is away: what is recorded is fenced, so nothing can go wrong before it is back.
            continue
        if ours is None:
            lost.abort(RebuildLost(run.id))
            return


async def _let_go(database: Database, run: Run, reason: str | None) -> None:
    try:
        async with database.acquire() as connection:
            await connection.execute(database.sql(_LET_GO), run.id, run.holder, reason)
    except DATABASE_ERRORS:
        # The hold runs out by itself.
        return


def _name() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"
