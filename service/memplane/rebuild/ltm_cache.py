"""The caches of all processes forget their bodies, and read them from PostgreSQL again when they are asked for.

A notification tells the processes at once. It may get lost; so the rebuild is recorded, and every process looks at the
record when it polls (`memplane.cache.listener`).
"""

from __future__ import annotations

from memplane.cache.channel import CLEAR, cache_channel
from memplane.outbox.events import Target
from memplane.rebuild import runs
from memplane.rebuild.report import Report, Stage
from memplane.schema.database import Database


async def clear_caches(database: Database) -> Report:
    """Tell every process that holds a cache to forget its bodies. Raises `TargetUnavailable`."""
    async with database.transaction() as connection:
        row = await runs.unfinished(connection, database, Target.LTM_CACHE)
        if row is not None:
            run = await runs.take_up(connection, database, Target.LTM_CACHE, row)
        else:
            run = await runs.begin(connection, database, Target.LTM_CACHE, Stage.FILL)
        await runs.finish(database, run, connection)
        database.notify_after_commit(connection, cache_channel(database), {CLEAR})
    return Report(run.id, Target.LTM_CACHE)
