"""A rebuild that is killed: `python -m tests.rebuild.child`, its orders as JSON on stdin.

The process kills itself with SIGKILL when the rebuild reports `stage` for the nth time, so nothing of it is cleaned up.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from typing import Any

from memplane.projections.milvus_client import MilvusConnection
from memplane.projections.neo4j_client import Neo4jConnection
from memplane.rebuild import Progress, generations, rebuild_milvus, rebuild_neo4j, runs
from memplane.schema.database import Database
from memplane.settings import MilvusSettings, Neo4jSettings, PostgresSettings, RebuildSettings
from tests.crash.child import with_secret
from tests.projections.support import stored_embeddings


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killing(stage: str, times: int) -> Any:
    """A progress callback that kills; for `switched`, right after the switch has been committed."""
    left = times
    if stage == "switched":
        switch = generations.switch

        async def then_die(*arguments: Any, **options: Any) -> str:
            await switch(*arguments, **options)
            die()
            return ""

        generations.switch = then_die

    def progress(at: Progress) -> None:
        nonlocal left
        if at.stage == stage:
            left -= 1
            if left == 0:
                die()

    return progress


async def main(orders: dict[str, Any]) -> None:
    database = Database(with_secret(PostgresSettings, orders["postgres"]))
    # A dead process must not keep its rebuild for as long as a real one does.
    runs.HOLD_SECONDS = 2.0
    progress, settings = killing(orders["stage"], orders["times"]), RebuildSettings(page_size=20, concurrency=1)
    if orders["target"] == "milvus":
        milvus = MilvusConnection(with_secret(MilvusSettings, orders["milvus"]))
        await rebuild_milvus(database, milvus, stored_embeddings(database), settings, progress=progress)
    else:
        neo4j = Neo4jConnection(with_secret(Neo4jSettings, orders["neo4j"]))
        await rebuild_neo4j(database, neo4j, settings, progress=progress)


if __name__ == "__main__":
    asyncio.run(main(json.load(sys.stdin)))
