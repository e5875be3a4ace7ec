"""A process that is killed around a transaction: `python -m tests.consolidation.child`, its orders as JSON on stdin.

It consolidates or purges with the real code, and kills itself with SIGKILL before or after the commit of its nth
transaction, so nothing of it is cleaned up.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from memplane.consolidation import consolidate
from memplane.contracts import Scope
from memplane.outbox.events import Target
from memplane.plugins.postgres.writing import Writing
from memplane.purge import purge
from memplane.schema.database import Connection, Database
from memplane.settings import PostgresSettings
from tests.consolidation.world import job
from tests.crash.child import with_secret
from tests.purge.world import SETTINGS


class Dies(Database):
    """Kills the process before or after the commit of its `times`th transaction."""

    point = ""
    times = 0

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        self.times -= 1
        async with super().transaction() as connection:
            yield connection
            if self.times == 0 and self.point == "before_commit":
                os.kill(os.getpid(), signal.SIGKILL)
        if self.times == 0:
            os.kill(os.getpid(), signal.SIGKILL)


async def main() -> None:
    orders: dict[str, Any] = json.loads(sys.stdin.read())
    database = Dies(with_secret(PostgresSettings, orders["postgres"]))
    database.point, database.times = orders["point"], orders["times"]
    targets = frozenset(Target(target) for target in orders["targets"])
    if orders["role"] == "purge":
        await purge(database, SETTINGS, targets)
    else:
        writing = Writing(database, targets)
        await consolidate(writing, Scope("acme", orders["user"]), job("exact", "decay", batch_size=4))


if __name__ == "__main__":
    asyncio.run(main())
