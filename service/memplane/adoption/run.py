"""`memplane migrate --adopt` from the first look to a table that memplane serves from. Every step can be repeated.

The work is done on one connection of its own that holds a session lock, so two runs never meet; a killed run's lock
goes with its connection. What was committed stays, the next run goes on from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import asyncpg

from memplane.adoption.backfill import Backfill
from memplane.adoption.checks import check_values
from memplane.adoption.indexes import build_indexes
from memplane.adoption.locking import Stopped, under_lock
from memplane.adoption.mapping import Mapping, resolve
from memplane.adoption.plan import Plan, build
from memplane.adoption.progress import LoggedProgress, Report
from memplane.adoption.settle import pending, settle
from memplane.adoption.state import State, check_unchanged, read_state, save_stage, start_state
from memplane.adoption.statements import Release, read_release
from memplane.adoption.table import TABLE, OldTable, read_table
from memplane.errors import SchemaError, TargetUnavailable
from memplane.outbox.events import Target
from memplane.schema.database import CONNECT_ERRORS, Connection, Database
from memplane.schema.migrate import BOOKKEEPING, Migration, migrations, record
from memplane.settings import AdoptionSettings
from memplane.signal import Signal

_LOCK: Final = "SELECT pg_try_advisory_lock(hashtextextended($1, 0))"
_UNREADY: Final = "SELECT count(*) FROM {schema}.long_term_memory WHERE text_hash = ''"

WAIT_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Adoption:
    """What is known before anything is done."""

    database: Database
    settings: AdoptionSettings
    targets: Collection[Target]
    table: OldTable
    mapping: Mapping
    plan: Plan
    files: tuple[Migration, ...]


async def look(database: Database, settings: AdoptionSettings, targets: Collection[Target]) -> Adoption | State:
    """The plan for the table, or the state of an adoption that has reached `adopted`. Changes nothing.

    Raises `SettingsError` with every reason against it, `SchemaError` when there is nothing to adopt.
    """
    async with database.acquire() as connection:
        state = await read_state(connection, database)
        if state is not None and state.stage in ("adopted", "finished"):
            return state
        table = state.table if state is not None else await read_table(connection, database)
        schema = database.settings.schema_name
        if table is None:
            raise SchemaError(
                f"There is no table {schema}.{TABLE} to adopt. It stays where it is: name its schema as "
                "postgres.schema_name. For a new backend run `memplane migrate`"
            )
        files = migrations()
        if state is not None:
            check_unchanged(state, settings)
            if state.level != files[-1].number:
                raise SchemaError(f"The adoption was begun by the release of level {state.level}: end it with that one")
        elif "schema_migration" in table.names:
            raise SchemaError(f"{schema}.{TABLE} is memplane's own already: run `memplane migrate`")
        release: Release = read_release(files)
        mapping = resolve(table, settings, release)
        if state is None:
            await check_values(connection, database, mapping)
        return Adoption(database, settings, targets, table, mapping, build(mapping, release, settings), files)


async def adopt(
    database: Database,
    settings: AdoptionSettings,
    *,
    targets: Collection[Target],
    signal: Signal | None = None,
    show: Report | None = None,
) -> State | None:
    """Adopt the table, or go on with it; returns the state, or None when the signal stopped it.

    Raises what `look` raises, and `TargetUnavailable` when PostgreSQL goes away: then run it again.
    """
    signal, report = signal or Signal(), LoggedProgress(show)
    try:
        async with session(database, signal, report) as connection:
            found = await look(database, settings, targets)
            if isinstance(found, State):
                return found
            await _work(connection, found, signal, report)
            return await read_state(connection, database)
    except Stopped:
        return None
    except CONNECT_ERRORS:
        raise TargetUnavailable(
            "postgresql", "the connection was lost; what was committed stays, run it again"
        ) from None


async def _work(connection: Connection, adoption: Adoption, signal: Signal, report: Report) -> None:
    database = adoption.database
    state = await read_state(connection, database)
    if state is None:
        await _shape(connection, adoption, signal, report)
        state = await read_state(connection, database)
        assert state is not None
    if state.stage == "backfill":
        backfill = Backfill(database, adoption.mapping, adoption.settings)
        if not await backfill.run(connection, state, signal, report):
            raise Stopped
        await save_stage(connection, database, "index")
    await build_indexes(connection, database, adoption.plan.indexes, signal, report)
    await _enforce(connection, adoption, signal, report)
    await _settle_backlog(connection, adoption, signal, report)
    await _complete(connection, adoption, report)


async def _shape(connection: Connection, adoption: Adoption, signal: Signal, report: Report) -> None:
    database, plan = adoption.database, adoption.plan

    async def work() -> None:
        await connection.execute(database.sql(BOOKKEEPING))
        for statement in plan.prepare:
            await connection.execute(database.sql(statement))
        # The lock on the table begins here and ends with the commit, a few catalog changes later.
        for statement in (plan.alter, *plan.after):
            await connection.execute(database.sql(statement))
        await start_state(connection, database, adoption.table, adoption.settings, adoption.files[-1].number)

    report("columns and trigger", 0, 1)
    try:
        await under_lock(connection, adoption.settings, work, signal=signal, report=report, stage="columns and trigger")
    except (asyncpg.FeatureNotSupportedError, asyncpg.DependentObjectsStillExistError) as error:
        # A view or rule of the application's on a column that has to become longer.
        raise SchemaError(f"The table cannot be changed in place: {_said(error)}") from None
    except asyncpg.InsufficientPrivilegeError as error:
        raise SchemaError(f"The role lacks a privilege: {_said(error)}") from None


async def _enforce(connection: Connection, adoption: Adoption, signal: Signal, report: Report) -> None:
    for number, statement in enumerate(adoption.plan.enforce):
        report("constraints", number, len(adoption.plan.enforce))

        async def work(statement: str = statement) -> None:
            await connection.execute(adoption.database.sql(statement))

        await under_lock(connection, adoption.settings, work, signal=signal, report=report, stage="constraints")


async def _settle_backlog(connection: Connection, adoption: Adoption, signal: Signal, report: Report) -> None:
    """Settle about what has come together during the backfill; the rest is the service's, like all that follows."""
    done, total = 0, await pending(connection, adoption.database)
    while done < total and not signal.aborted:
        report("changes of the old application", done, total)
        settled = await settle(adoption.database, targets=adoption.targets)
        if not settled:
            return
        done += settled


async def settle_all(
    connection: Connection, database: Database, targets: Collection[Target], signal: Signal, report: Report
) -> None:
    """Settle until nothing waits; rows that are locked for long hold it up."""
    done = 0
    while waiting := await pending(connection, database):
        if signal.aborted:
            raise Stopped
        report("changes of the old application", done, done + waiting)
        settled = await settle(database, targets=targets)
        done += settled
        if not settled:
            await asyncio.sleep(WAIT_SECONDS)


async def _complete(connection: Connection, adoption: Adoption, report: Report) -> None:
    database = adoption.database
    report("check", 0, 1)
    unready = await connection.fetchval(database.sql(_UNREADY))
    if unready:
        raise SchemaError(f"{unready} rows were not backfilled: run the command again")
    async with connection.transaction():
        await record(connection, database, adoption.files)
        await save_stage(connection, database, "adopted")
    await connection.execute(database.sql("ANALYZE {schema}.long_term_memory"))


@asynccontextmanager
async def session(database: Database, signal: Signal, report: Report) -> AsyncIterator[Connection]:
    """A connection that holds the adoption's lock; waits for another run that has it. Raises `Stopped`."""
    connection = await database.connect_direct()
    try:
        name = f"memplane.adoption:{database.settings.schema_name}"
        while not await connection.fetchval(_LOCK, name):
            if signal.aborted:
                raise Stopped
            report("another run is at work", 0, 1)
            await asyncio.sleep(WAIT_SECONDS)
        yield connection
    finally:
        # Not `close`: after a signal a statement may still run, which `terminate` ends with the session.
        connection.terminate()


def _said(error: asyncpg.PostgresError) -> str:
    """PostgreSQL's own sentence: it names objects of the schema, never values."""
    return str(error.args[0]).splitlines()[0]
