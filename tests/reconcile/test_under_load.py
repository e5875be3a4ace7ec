"""Writers and deleters of related memories race each other while workers project: in the end nothing differs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest

from memplane.contracts import CallOptions, Scope
from memplane.errors import PluginError
from memplane.outbox.events import ProjectionTarget
from memplane.outbox.worker import OutboxWorker
from memplane.plugins.postgres.backend import PostgresBackend
from memplane.plugins.postgres.store import PostgresStore
from memplane.projections.clients import MilvusConnection, Neo4jConnection
from memplane.projections.milvus import MilvusProjection
from memplane.projections.neo4j import Neo4jProjection
from memplane.reconcile import reconcile
from memplane.schema.database import Database
from memplane.settings import MilvusSettings, Neo4jSettings
from memplane.signal import Signal
from tests.outbox.world import all_done, quick, until
from tests.projections.support import Letters, stored_embeddings
from tests.reconcile.support import EVERYTHING

NO_OPTIONS = CallOptions()
WRITERS = 6
ROUNDS = 25
EXPECTED = {"NOT_FOUND", "CONFLICT", "INVALID_INPUT", "STORE_BUSY"}


class Writer:
    """Changes memories that others change, too; `ids` is what all of them have written."""

    def __init__(self, store: PostgresStore, ids: list[str], seed: int) -> None:
        self._store = store
        self._ids = ids
        self._dice = random.Random(seed)

    def _some(self, most: int) -> list[str]:
        return self._dice.sample(self._ids, min(len(self._ids), self._dice.randint(0, most)))

    def _metadata(self, source: str | None = None) -> Any:
        relations = [{"type": "about", "target": target} for target in self._some(3) if target != source]
        return {"category": self._dice.choice("abc"), "relations": relations}

    async def _change(self) -> None:
        kind = self._dice.choice(["write", "write", "update", "update", "delete"])
        if kind == "write" or not self._ids:
            draft = {"content": f"text {self._dice.random()}", "key": self._dice.choice("abcdefgh")}
            drafts: Any = [{**draft, "metadata": self._metadata()}, {"content": "again"}]
            self._ids += [item["id"] for item in await self._store.write({"memories": drafts}, NO_OPTIONS)]
        elif kind == "update":
            entries: Any = [{"id": one, "metadata": self._metadata(one)} for one in self._some(3) or self._ids[-1:]]
            await self._store.update({"memories": entries}, NO_OPTIONS)
        else:
            await self._store.delete({"ids": self._some(3)}, NO_OPTIONS)

    async def run(self) -> int:
        done = 0
        for _ in range(ROUNDS):
            try:
                await self._change()
                done += 1
            except PluginError as error:
                if error.code not in EXPECTED:
                    raise
        return done


async def _project_until(stop: Signal, database: Database, targets: Sequence[ProjectionTarget]) -> None:
    workers = [
        OutboxWorker(database, target, quick(), worker_id=f"{target.name}-{number}")
        for number, target in enumerate(targets)
    ]
    await asyncio.gather(*(worker.run(stop) for worker in workers))


@pytest.fixture
def targets(
    database: Database, provider: Letters, milvus_settings: MilvusSettings, neo4j_settings: Neo4jSettings
) -> list[ProjectionTarget]:
    """Two of each for the workers, with connections of their own, which the workers close."""
    made: list[ProjectionTarget] = []
    for _ in range(2):
        made.append(
            MilvusProjection(database, MilvusConnection(milvus_settings), stored_embeddings(database, provider))
        )
        made.append(Neo4jProjection(database, Neo4jConnection(neo4j_settings)))
    return made


async def test_racing_writers_and_workers_end_without_a_difference(
    database: Database, targets: list[ProjectionTarget], milvus: MilvusProjection, neo4j: Neo4jProjection
) -> None:
    store = PostgresBackend(database, targets=EVERYTHING).scoped(Scope("acme", "ann"))
    stop, ids = Signal(), list[str]()
    projecting = asyncio.create_task(_project_until(stop, database, targets))
    try:
        done = await asyncio.gather(*(Writer(store, ids, seed).run() for seed in range(WRITERS)))
        assert sum(done) > WRITERS * ROUNDS / 3, "most changes must get through for this test to mean something"
        await until(lambda: all_done(database), 60)
    finally:
        stop.abort()
        await asyncio.wait_for(projecting, 30)
    for target in (milvus, neo4j):
        report = await reconcile(database, target, mode="audit")
        assert (report.state, report.mismatches) == ("completed", {}), target.name
        assert report.scanned > 0
