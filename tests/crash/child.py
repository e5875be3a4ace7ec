"""A process that is killed at one point of its work: `python -m tests.crash.child`, its orders as JSON on stdin.

Role `worker` runs the real outbox worker on the real target; role `writer` runs the real store. The process kills
itself with SIGKILL when the point is reached for the nth time, so nothing of it is cleaned up.
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

from pydantic import SecretStr

from memplane.contracts import CallOptions, Scope
from memplane.outbox.events import ProjectionTarget, Target
from memplane.outbox.probes import Point
from memplane.outbox.worker import OutboxWorker
from memplane.plugins.postgres.backend import PostgresBackend
from memplane.projections.clients import MilvusConnection, Neo4jConnection
from memplane.projections.milvus import MilvusProjection
from memplane.projections.neo4j import Neo4jProjection
from memplane.schema.database import Connection, Database
from memplane.settings import MilvusSettings, Neo4jSettings, OutboxSettings, PostgresSettings
from memplane.signal import Signal
from tests.projections.support import stored_embeddings


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class DiesBeforeCommit(Database):
    """Kills the process when the work of its first transaction is done, before it commits."""

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        async with super().transaction() as connection:
            yield connection
            die()


async def work(orders: dict[str, Any], database: Database) -> None:
    left = orders["times"]

    async def probe(point: Point) -> None:
        nonlocal left
        if point == orders["point"]:
            left -= 1
            if left == 0:
                die()

    target: ProjectionTarget
    if orders["target"] == Target.MILVUS:
        target = MilvusProjection(
            database, MilvusConnection(with_secret(MilvusSettings, orders["milvus"])), stored_embeddings(database)
        )
    else:
        target = Neo4jProjection(database, Neo4jConnection(with_secret(Neo4jSettings, orders["neo4j"])))
    await OutboxWorker(database, target, OutboxSettings(**orders["outbox"]), probe=probe).run(Signal())


async def write(orders: dict[str, Any], database: Database) -> None:
    backend = PostgresBackend(
        database,
        targets=[Target.MILVUS, Target.NEO4J],
        on_commit=lambda *_: die() if orders["point"] == "after_commit" else None,
    )
    store = backend.scoped(Scope("acme", orders["user"]))
    drafts: Any = [{"content": text} for text in orders["texts"]]
    await store.write({"memories": drafts}, CallOptions())


def with_secret(kind: Any, values: dict[str, Any]) -> Any:
    secrets = {name: SecretStr(values[name]) for name in ("dsn", "token", "password") if values.get(name)}
    return kind(**{**values, **secrets})


async def main() -> None:
    orders = json.loads(sys.stdin.read())
    kind = DiesBeforeCommit if orders["point"] == "before_commit" else Database
    database = kind(with_secret(PostgresSettings, orders["postgres"]))
    await (work if orders["role"] == "worker" else write)(orders, database)


if __name__ == "__main__":
    asyncio.run(main())
