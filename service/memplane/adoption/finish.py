"""`memplane migrate --finish-adoption`: the old application is gone, so the trigger goes, too."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from memplane.adoption.locking import Stopped, under_lock
from memplane.adoption.plan import UNHASHED, finish_statements
from memplane.adoption.progress import LoggedProgress, Report
from memplane.adoption.run import session, settle_all
from memplane.adoption.settle import pending
from memplane.adoption.state import State, read_state, save_stage
from memplane.adoption.trigger import drop_triggers
from memplane.errors import MemplaneError, SchemaError, TargetUnavailable
from memplane.outbox.events import Target
from memplane.schema.database import CONNECT_ERRORS, Connection, Database
from memplane.settings import AdoptionSettings
from memplane.signal import Signal

ROUNDS: Final = 10
"""How often a change that comes in at the last moment is settled before the old application counts as alive."""

_LOCK: Final = "LOCK TABLE {schema}.long_term_memory IN SHARE ROW EXCLUSIVE MODE"


class StillWriting(MemplaneError):  # noqa: N818 - reads as what was found
    """The old application has written a moment ago."""


class _Late(Exception):  # noqa: N818 - an instruction to `finish`, never seen outside
    """Something was captured between the settling and the lock."""


@dataclass(frozen=True, slots=True)
class _Watch:
    """A run of `finish` and what it works with."""

    connection: Connection
    database: Database
    settings: AdoptionSettings
    state: State
    targets: Collection[Target]
    signal: Signal
    report: Report


async def finish(
    database: Database,
    settings: AdoptionSettings,
    *,
    targets: Collection[Target],
    signal: Signal | None = None,
    show: Report | None = None,
) -> State | None:
    """Settle what waits, then take the trigger away; returns the state, or None when the signal stopped it.

    Raises `StillWriting` unless the old application has been quiet for `adoption.quiet_seconds`, `SchemaError` when
    there is no adoption to finish.
    """
    signal, report = signal or Signal(), LoggedProgress(show)
    try:
        async with session(database, signal, report) as connection:
            state = await read_state(connection, database)
            if state is None or state.stage in ("backfill", "index"):
                raise SchemaError("there is no adoption to finish: `memplane migrate --adopt` comes first")
            if state.stage == "adopted":
                await settle_all(connection, database, targets, signal, report)
                await _check_quiet(connection, database, settings)
                await _end(_Watch(connection, database, settings, state, targets, signal, report))
            await connection.execute(database.sql(f"DROP INDEX CONCURRENTLY IF EXISTS {{schema}}.{UNHASHED.name}"))
            return await read_state(connection, database)
    except Stopped:
        return None
    except CONNECT_ERRORS:
        raise TargetUnavailable("postgresql", "the connection was lost; run it again") from None


async def _check_quiet(connection: Connection, database: Database, settings: AdoptionSettings) -> None:
    state = await read_state(connection, database)
    quiet = None if state is None else state.quiet_seconds
    if quiet is not None and quiet < settings.quiet_seconds:
        raise StillWriting(
            f"the old application wrote {quiet:.0f} seconds ago. Stop it, then wait until it has been quiet for "
            f"{settings.quiet_seconds:g} seconds (adoption.quiet_seconds)"
        )


async def _end(watch: _Watch) -> None:
    connection, database = watch.connection, watch.database

    async def work() -> None:
        await connection.execute(database.sql(_LOCK))
        # Under the lock nobody writes any more: what is not here now never comes.
        if await pending(connection, database):
            raise _Late
        for statement in (*drop_triggers(), *finish_statements(watch.state.table)):
            await connection.execute(database.sql(statement))
        await save_stage(connection, database, "finished")

    for _ in range(ROUNDS):
        try:
            await under_lock(
                connection, watch.settings, work, signal=watch.signal, report=watch.report, stage="end of the adoption"
            )
        except _Late:
            await settle_all(connection, database, watch.targets, watch.signal, watch.report)
            continue
        return
    raise StillWriting("the old application is still writing: stop it first")
