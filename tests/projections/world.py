"""A history of changes through the real store, whose events are delivered to a real target in any order.

The oracle is SQL of its own on the truth; nothing of the projection code is used to say what a target should hold.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import uuid4

from memplane.contracts import CallOptions, Scope
from memplane.errors import PluginError
from memplane.outbox.enqueue import enqueue_repairs
from memplane.outbox.events import Event, Family, Outcome, ProjectionTarget, Target, Task
from memplane.outbox.settlement import late_repair
from memplane.outbox.truth import read_truths
from memplane.plugins.postgres.backend import PostgresBackend
from memplane.plugins.postgres.store import PostgresStore
from memplane.schema.database import Database

EVENTS = """
SELECT id, event_id, aggregate_id, tenant, user_id, aggregate_version, event_type, family, target, payload, attempts,
       created_at, repair_key IS NOT NULL AS repair
FROM {schema}.memory_outbox WHERE target = $1 AND user_id = $2 ORDER BY id
"""

LIVE = """
SELECT id, version, content_hash, category, tags, importance, metadata FROM {schema}.long_term_memory
WHERE user_id = $1 AND deleted_at IS NULL
"""

EDGES = """
SELECT e.source_id, e.type, e.target_id, e.version, e.relation_hash
FROM {schema}.memory_edge AS e JOIN {schema}.long_term_memory AS m ON m.id = e.source_id
WHERE e.user_id = $1 AND e.deleted_at IS NULL AND m.deleted_at IS NULL
"""


class World:
    """One user's memories, and the deliveries of their events to one target."""

    def __init__(self, database: Database, target: ProjectionTarget) -> None:
        self.database = database
        self.target = target
        self.user = f"user-{uuid4().hex[:12]}"
        backend = PostgresBackend(database, targets=[Target.MILVUS, Target.NEO4J])
        self.store: PostgresStore = backend.scoped(Scope("acme", self.user))
        self.ids: list[str] = []
        self.captured: list[Task] = []

    async def write(self, keys: Sequence[str | None], relations: Iterable[tuple[str, int]]) -> None:
        """New memories; the first one points to older ones, given by their place among all that were written."""
        drafts: list[Any] = [{"content": f"text {uuid4().hex}", "metadata": {"category": "new"}} for _ in keys]
        for draft, key in zip(drafts, keys, strict=True):
            if key is not None:
                draft["key"] = key
        drafts[0]["metadata"]["relations"] = self._relations(relations)
        items = await self._attempt(self.store.write({"memories": drafts}, CallOptions()))
        self.ids += [item["id"] for item in items or ()]

    async def update(self, place: int, category: str, relations: Iterable[tuple[str, int]] | None) -> None:
        if not self.ids:
            return
        metadata: dict[str, Any] = {"category": category, "tags": [category]}
        if relations is not None:
            metadata["relations"] = self._relations(relations)
        entry: Any = {"id": self.ids[place % len(self.ids)], "metadata": metadata}
        await self._attempt(self.store.update({"memories": [entry]}, CallOptions()))

    async def delete(self, place: int) -> None:
        if self.ids:
            await self._attempt(self.store.delete({"ids": [self.ids[place % len(self.ids)]]}, CallOptions()))

    async def _attempt(self, change: Any) -> Any:
        """A change that the store may refuse: a relation to a dead memory, a key that is taken, an id that is gone."""
        try:
            return await change
        except PluginError:
            return None

    def _relations(self, relations: Iterable[tuple[str, int]]) -> list[dict[str, str]]:
        if not self.ids:
            return []
        made = {(kind, self.ids[place % len(self.ids)]) for kind, place in relations}
        return [{"type": kind, "target": target} for kind, target in sorted(made)]

    async def events(self) -> list[Event]:
        """Every event of the user, finished or not: a late worker may hold any of them."""
        async with self.database.acquire() as connection:
            rows = await connection.fetch(self.database.sql(EVENTS), self.target.name.value, self.user)
        return [
            Event(
                row["id"],
                row["event_id"],
                row["aggregate_id"],
                row["tenant"],
                row["user_id"],
                row["aggregate_version"],
                row["event_type"],
                Family(row["family"]),
                Target(row["target"]),
                {"edges_version": 0},
                row["attempts"],
                row["created_at"],
                uuid4(),
                repair=row["repair"],
            )
            for row in rows
        ]

    async def tasks(self, events: Sequence[Event]) -> list[Task]:
        truths = await read_truths(self.database, events, self.target.needs)
        return [Task(event, truths[event.id]) for event in events]

    async def deliver(self, events: Sequence[Event]) -> list[Outcome]:
        """Project the present truth for each event, in batches in which no memory comes twice."""
        return await self._project(await self.tasks(events))

    async def _project(self, tasks: Sequence[Task]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        waiting = list(tasks)
        while waiting:
            seen: set[int] = set()
            batch = [task for task in waiting if not (task.event.memory_id in seen or seen.add(task.event.memory_id))]  # type: ignore[func-returns-value]
            outcomes += await self.target.project(batch, timeout=60)
            chosen = {id(task) for task in batch}
            waiting = [task for task in waiting if id(task) not in chosen]
        return outcomes

    async def capture(self, chance: random.Random) -> None:
        """A worker reads the truth, then loses its lease before it calls the target."""
        events = await self.events()
        self.captured += await self.tasks(chance.sample(events, min(len(events), 2)))

    async def late(self) -> None:
        """The late worker calls the target after all, finds its claim lost, and inserts repairs (design section 6)."""
        tasks, self.captured = self.captured, []
        await self._project(tasks)
        async with self.database.transaction() as connection:
            await enqueue_repairs(connection, self.database, [late_repair(task) for task in tasks])

    async def shuffled(self, chance: random.Random, share: float) -> None:
        """Deliver some of all events, in any order, some of them twice."""
        events = await self.events()
        chosen = [event for event in events if chance.random() < share]
        chosen += [event for event in chosen if chance.random() < 0.3]
        chance.shuffle(chosen)
        await self.deliver(chosen)

    async def live(self) -> dict[int, dict[str, Any]]:
        async with self.database.acquire() as connection:
            rows = await connection.fetch(self.database.sql(LIVE), self.user)
        return {row["id"]: dict(row) for row in rows}

    async def edges(self) -> set[tuple[int, str, int, int, str]]:
        async with self.database.acquire() as connection:
            rows = await connection.fetch(self.database.sql(EDGES), self.user)
        return {tuple(row) for row in rows}
