"""One process that drains a queue: the product's own outbox worker, or PgQueuer's own queue manager.

`python -m bench.drainer memplane|pgqueuer DSN BATCH EVENTS` prints the seconds from the first claim to the last
acknowledgement. Both run on uvloop, as their own commands do.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence

import asyncpg
import uvloop

from memplane.outbox.events import Needs, Outcome, Target, Task, Verdict
from memplane.outbox.worker import OutboxWorker
from memplane.schema.database import Database
from memplane.settings import OutboxSettings, PostgresSettings
from memplane.signal import Signal

ENTRYPOINT = "project"
APPLIED = Outcome(Verdict.APPLIED)


class NoTarget:
    """A projection target that does nothing: what remains is the outbox."""

    def __init__(self) -> None:
        self.projected = 0

    @property
    def name(self) -> Target:
        return Target.MILVUS

    @property
    def needs(self) -> Needs:
        return Needs(fields=False)

    async def start(self) -> None: ...
    async def close(self) -> None: ...
    async def healthy(self) -> bool:
        return True

    async def project(self, tasks: Sequence[Task], *, timeout: float) -> Sequence[Outcome]:
        self.projected += len(tasks)
        return [APPLIED] * len(tasks)

    async def settled(self, tasks: Sequence[Task], *, timeout: float) -> Sequence[bool]:
        return [True] * len(tasks)


async def drain_memplane(dsn: str, batch: int, events: int) -> float:
    database = Database(PostgresSettings.model_validate({"dsn": dsn, "statement_timeout": 600}))
    await database.open()
    worker = OutboxWorker(database, NoTarget(), OutboxSettings(batch_size=batch))
    signal = Signal()
    started = time.perf_counter()
    running = asyncio.create_task(worker.run(signal))
    while worker.total.processed < events:  # noqa: ASYNC110 - the worker itself knows no end to wait for
        await asyncio.sleep(0.002)
    seconds = time.perf_counter() - started
    signal.abort()
    await running
    await database.close()
    return seconds


async def drain_pgqueuer(dsn: str, batch: int, events: int) -> float:
    from pgqueuer import PgQueuer
    from pgqueuer.types import QueueExecutionMode

    connection = await asyncpg.connect(dsn)
    queue = PgQueuer.from_asyncpg_connection(connection)
    done = 0

    @queue.entrypoint(ENTRYPOINT)
    async def project(job: object) -> None:
        nonlocal done
        done += 1

    started = time.perf_counter()
    await queue.run(batch_size=batch, mode=QueueExecutionMode.drain)
    seconds = time.perf_counter() - started
    if done < events:
        raise RuntimeError(f"{done} of {events} jobs were run")
    return seconds


def main() -> None:
    side, dsn, batch, events = sys.argv[1:]
    drain = {"memplane": drain_memplane, "pgqueuer": drain_pgqueuer}[side]
    print(uvloop.run(drain(dsn, int(batch), int(events))))


if __name__ == "__main__":
    main()
