"""A small truth to test the outbox with: memories written like the store writes them, and a target made of a dict."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Any

from memplane.errors import TargetUnavailable
from memplane.outbox.claim import claim
from memplane.outbox.enqueue import Change, Operation, enqueue
from memplane.outbox.events import Event, Needs, Outcome, Target, Task, TaskFailed, Verdict
from memplane.outbox.locks import lock_memories
from memplane.schema.database import Connection, Database
from memplane.settings import OutboxSettings

ALL_TARGETS = frozenset(Target)
MILVUS = frozenset({Target.MILVUS})
NEO4J = frozenset({Target.NEO4J})

_CREATE = """
INSERT INTO {schema}.long_term_memory (tenant, user_id, content, content_hash, text_hash)
SELECT 't', 'u', 'text ' || i, 'h1', sha256(('text ' || i)::bytea) FROM generate_series(1, $1::int) AS i RETURNING id
"""
_BUMP = """
UPDATE {schema}.long_term_memory
SET version = version + 1, content_hash = 'h' || (version + 1), edges_version = edges_version + $2::int,
    deleted_at = CASE WHEN $3 THEN now() END
WHERE id = ANY ($1::bigint[]) RETURNING id, version, content_hash, edges_version
"""


async def create(
    database: Database, count: int = 1, *, targets: Collection[Target] = MILVUS, edges: bool = False
) -> list[int]:
    """Write `count` memories of version 1; returns their ids."""
    async with database.transaction() as connection:
        ids = [row["id"] for row in await connection.fetch(database.sql(_CREATE), count)]
        await enqueue(
            connection,
            database,
            [Change(id_, "t", "u", 1, "h1", "upsert", edges=edges, fresh=True) for id_ in ids],
            targets=targets,
        )
    return ids


async def change_on(
    connection: Connection,
    database: Database,
    ids: Iterable[int],
    *,
    targets: Collection[Target] = MILVUS,
    node: bool = True,
    edges: bool = False,
    operation: Operation = "upsert",
) -> dict[int, int]:
    """Give each memory its next version inside the caller's transaction; returns the versions."""
    wanted = sorted(set(ids))
    await lock_memories(connection, database, wanted)
    rows = await connection.fetch(database.sql(_BUMP), wanted, int(edges), operation == "delete")
    await enqueue(
        connection,
        database,
        [
            Change(
                row["id"], "t", "u", row["version"], row["content_hash"], operation,
                node=node, edges=edges, edges_version=row["edges_version"],
            )
            for row in rows
        ],
        targets=targets,
    )  # fmt: skip
    return {row["id"]: row["version"] for row in rows}


async def change(database: Database, ids: Iterable[int], **options: Any) -> dict[int, int]:
    """`change_on` in a transaction of its own."""
    async with database.transaction() as connection:
        return await change_on(connection, database, ids, **options)


async def claim_some(
    database: Database, target: Target = Target.MILVUS, *, limit: int = 100, lease: float = 60
) -> list[Event]:
    return await claim(database, target, worker="test", limit=limit, lease_seconds=lease)


async def rows(database: Database, where: str = "TRUE", *arguments: object) -> list[Any]:
    async with database.acquire() as connection:
        return await connection.fetch(
            database.sql(f"SELECT * FROM {{schema}}.memory_outbox WHERE {where} ORDER BY id"), *arguments
        )


async def execute(database: Database, statement: str, *arguments: object) -> str:
    async with database.acquire() as connection:
        return await connection.execute(database.sql(statement), *arguments)


async def statuses(database: Database) -> Counter[str]:
    return Counter(row["status"] for row in await rows(database))


async def make_due(database: Database) -> None:
    """Let every retry be due now."""
    await execute(database, "UPDATE {schema}.memory_outbox SET available_at = now() WHERE status = 'pending'")


async def expire_leases(database: Database) -> None:
    await execute(
        database,
        "UPDATE {schema}.memory_outbox SET locked_until = now() - interval '1 second' WHERE status = 'processing'",
    )


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 15) -> None:
    """Wait until `condition` holds; fails the test when it does not in time."""
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110 - the database has no event to wait for
            await asyncio.sleep(0.02)


async def all_done(database: Database) -> bool:
    return set(await statuses(database)) <= {"processed"}


def quick(**changes: Any) -> OutboxSettings:
    """Settings with which nothing takes long."""
    values: dict[str, Any] = {
        "lease_seconds": 2, "renew_seconds": 0.5, "call_timeout": 1, "retry_base_seconds": 0.02,
        "retry_max_seconds": 0.1, "poll_seconds": 0.1, "breaker_seconds": 0.1, "drain_seconds": 2, "batch_size": 50,
        "concurrency": 2,
    }  # fmt: skip
    return OutboxSettings(**{**values, **changes})


class DictTarget:
    """A projection target in memory. Tests script its failures through its attributes."""

    def __init__(self, name: Target = Target.MILVUS) -> None:
        self._name = name
        self.held: dict[int, int] = {}
        """memory_id → version; a deleted memory is absent."""
        self.calls: list[list[int]] = []
        self.available = True
        self.refuse: set[int] = set()
        """Named as culprits with `TaskFailed`."""
        self.poison: set[int] = set()
        """Spoil their whole batch without being named."""
        self.hang: set[int] = set()
        """Calls with them take for ever."""
        self.verdicts: dict[int, Verdict] = {}
        self.health_calls = 0
        self.starts = 0
        self.closed = False
        self.before: Callable[[Sequence[Task]], Awaitable[None]] | None = None

    @property
    def name(self) -> Target:
        return self._name

    @property
    def needs(self) -> Needs:
        return Needs(fields=False)

    async def start(self) -> None:
        self.starts += 1
        if not self.available:
            raise TargetUnavailable(self._name.value, "scripted")

    async def close(self) -> None:
        self.closed = True

    async def healthy(self) -> bool:
        self.health_calls += 1
        return self.available

    async def project(self, tasks: Sequence[Task], *, timeout: float) -> Sequence[Outcome]:
        ids = [task.event.memory_id for task in tasks]
        self.calls.append(ids)
        assert len(set(ids)) == len(ids), "a memory twice in one batch"
        if self.before is not None:
            await self.before(tasks)
        if not self.available:
            raise TargetUnavailable(self._name.value, "scripted")
        if self.hang & set(ids):
            await asyncio.Event().wait()
        for memory_id in ids:
            if memory_id in self.refuse:
                raise TaskFailed(memory_id, "cannot hold it")
        if self.poison & set(ids):
            raise RuntimeError("driver text with a password")
        self.apply(tasks)
        return [Outcome(self.verdicts.get(memory_id, Verdict.APPLIED)) for memory_id in ids]

    def apply(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            if task.truth.live:
                self.held[task.truth.memory_id] = task.truth.version
            else:
                self.held.pop(task.truth.memory_id, None)

    async def settled(self, tasks: Sequence[Task], *, timeout: float) -> Sequence[bool]:
        if not self.available:
            raise TargetUnavailable(self._name.value, "scripted")
        return [
            self.held.get(task.truth.memory_id) == (task.truth.version if task.truth.live else None) for task in tasks
        ]
