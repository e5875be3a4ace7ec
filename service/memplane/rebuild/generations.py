"""The life of a generation: building, active, retired, dropped. Every step is one transaction under the target's lock.

Source: design section 7; decision 0018.
"""

from __future__ import annotations

from dataclasses import dataclass

from memplane.errors import IdentityError, TargetUnavailable
from memplane.outbox.events import Target
from memplane.projections.errors import ProjectionRefused
from memplane.projections.generation import (
    COLUMNS,
    Generation,
    VectorSpace,
    generation_of,
    insert_generation,
    lock_generations,
    same_space,
)
from memplane.projections.milvus_client import MilvusConnection
from memplane.projections.milvus_collection import drop_collection
from memplane.rebuild import runs
from memplane.rebuild.errors import RebuildFailed, RebuildRefused
from memplane.rebuild.report import Stage
from memplane.rebuild.runs import Run
from memplane.schema.database import Connection, Database
from memplane.schema.identity import read_identity_on

ABORTED_SECONDS = 60.0
"""How long after an abort its collection is looked for again: a worker that had just seen the row may make it anew."""

_BY_ID = f"SELECT {COLUMNS} FROM {{schema}}.projection_generation WHERE id = $1"

_RETIRE = """
UPDATE {schema}.projection_generation
SET state = 'retired', retired_at = statement_timestamp(),
    drop_after = statement_timestamp() + $3::float8 * interval '1 second'
WHERE target = $1 AND state = $2 RETURNING id, collection
"""

_ACTIVATE = """
UPDATE {schema}.projection_generation SET state = 'active', activated_at = statement_timestamp()
WHERE id = $1 AND state = 'building' RETURNING id
"""

_DROPPABLE = f"""
SELECT {COLUMNS} FROM {{schema}}.projection_generation
WHERE target = $1 AND state = 'retired' AND collection IS NOT NULL AND ($2 OR drop_after <= statement_timestamp())
ORDER BY id
"""

_DROPPED = """
UPDATE {schema}.projection_generation SET state = 'dropped', dropped_at = statement_timestamp()
WHERE id = $1 AND state = 'retired' AND drop_after <= statement_timestamp() RETURNING id
"""

_NOW = """
UPDATE {schema}.projection_generation SET drop_after = statement_timestamp() WHERE target = $1 AND state = 'retired'
"""


async def begin(database: Database, space: VectorSpace) -> tuple[Run, Generation]:
    """A new rebuild of Milvus with its generation, or the unfinished one, taken up again.

    Raises `RebuildRefused` when another process holds it, or when it builds another model than `space`.
    """
    async with database.transaction() as connection:
        backend = str(await read_identity_on(connection, database))
        await lock_generations(connection, database, Target.MILVUS)
        row = await runs.unfinished(connection, database, Target.MILVUS)
        if row is not None:
            generation = await _by_id(connection, database, row["generation_id"], backend)
            if row["stage"] != Stage.VERIFY and not same_space(generation, space):
                raise RebuildRefused(
                    f"An unfinished rebuild makes vectors of model {generation.model!r}, and this one is to make those "
                    f"of {space.model!r}. Run it with the settings of the first, or end that one with --abort"
                )
            return await runs.take_up(connection, database, Target.MILVUS, row), generation
        generation = await insert_generation(connection, database, Target.MILVUS, backend, space, state="building")
        run = await runs.begin(connection, database, Target.MILVUS, Stage.FILL, generation.id)
    return run, generation


async def _by_id(connection: Connection, database: Database, number: int, backend: str) -> Generation:
    return generation_of(await connection.fetchrow(database.sql(_BY_ID), number), backend)


async def switch(database: Database, run: Run, generation: Generation, *, grace_seconds: float) -> str:
    """Make the new generation the active one; returns the collection that it replaces. One transaction.

    Raises `RebuildLost` when the rebuild is not this process's any more.
    """
    async with database.transaction() as connection:
        await lock_generations(connection, database, Target.MILVUS)
        await runs.enter(database, run, Stage.VERIFY, connection)
        retired = await connection.fetchrow(database.sql(_RETIRE), Target.MILVUS.value, "active", grace_seconds)
        if await connection.fetchval(database.sql(_ACTIVATE), generation.id) is None:
            raise RebuildFailed(f"Generation {generation.id} is not being built any more")
    return "" if retired is None else str(retired["collection"])


@dataclass(frozen=True, slots=True)
class Aborted:
    """What an abort ended. `switched`: the new generation was in use already, and stays."""

    run_id: int
    collection: str
    switched: bool


async def abort(database: Database, milvus: MilvusConnection | None, target: Target) -> Aborted | None:
    """End the unfinished rebuild of the target, whoever works on it, and drop what it was building. Idempotent.

    The generation in use stays in use. None when no rebuild is unfinished.
    """
    async with database.transaction() as connection:
        await lock_generations(connection, database, target)
        row = await runs.abort(connection, database, target)
        retired = await connection.fetchrow(database.sql(_RETIRE), target.value, "building", ABORTED_SECONDS)
    if milvus is not None and retired is not None:
        await drop_retired(database, milvus, at_once=True)
    if row is None and retired is None:
        return None
    collection = str(retired["collection"]) if retired is not None else ""
    switched = target is Target.MILVUS and retired is None
    return Aborted(0 if row is None else int(row["id"]), collection, switched)


async def drop_retired(database: Database, milvus: MilvusConnection, *, at_once: bool = False) -> list[str]:
    """Drop the collections of retired generations whose time of grace is over; with `at_once`, of all of them.

    Idempotent, and safe to run in several processes at once. A generation counts as dropped once its time is over and
    its collection is gone. Returns the names that are gone now. Raises `TargetUnavailable`.
    """
    async with database.transaction() as connection:
        backend = str(await read_identity_on(connection, database))
        rows = await connection.fetch(database.sql(_DROPPABLE), Target.MILVUS.value, at_once)
    gone: list[str] = []
    for row in rows:
        generation = generation_of(row, backend)
        try:
            await drop_collection(milvus, generation)
        except ProjectionRefused:
            raise TargetUnavailable("milvus", f"the collection {generation.collection} cannot be dropped now") from None
        except IdentityError:
            # A collection of that name that is not ours: there is nothing of ours to drop.
            pass
        else:
            gone.append(generation.collection)
        async with database.acquire() as connection:
            await connection.execute(database.sql(_DROPPED), generation.id)
    return gone


async def end_grace(database: Database) -> None:
    """The time of grace of everything that is retired is over now (`memplane rebuild milvus --finish`)."""
    async with database.acquire() as connection:
        await connection.execute(database.sql(_NOW), Target.MILVUS.value)
