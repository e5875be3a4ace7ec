"""Starting a child that dies, working off what it left, and comparing both targets with the truth."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memplane.outbox.events import ProjectionTarget, Target
from memplane.outbox.worker import OutboxWorker
from memplane.projections.clients import MilvusConnection, Neo4jConnection
from memplane.projections.milvus import MilvusProjection
from memplane.projections.neo4j import Neo4jProjection
from memplane.reconcile import reconcile
from memplane.schema.database import Database
from memplane.settings import MilvusSettings, Neo4jSettings, OutboxSettings, PostgresSettings, Section
from memplane.signal import Signal
from tests.projections.support import stored_embeddings
from tests.reconcile.support import pending

ROOT = Path(__file__).parents[2]

OUTBOX = OutboxSettings(
    batch_size=2,
    lease_seconds=2,
    renew_seconds=0.5,
    call_timeout=20,
    retry_base_seconds=0.1,
    poll_seconds=0.2,
    breaker_seconds=0.3,
)
"""Small batches, so that a child is killed in the middle; a short lease, so that its events soon come back."""


def plain(settings: Section) -> dict[str, Any]:
    """Settings with their secrets, for a child's orders."""
    values = settings.model_dump(mode="json")
    for name in ("dsn", "token", "password"):
        if (secret := getattr(settings, name, None)) is not None:
            values[name] = secret.get_secret_value()
    return values


class Deployment:
    """One backend on the real servers."""

    def __init__(
        self, database: Database, postgres: PostgresSettings, milvus: MilvusSettings, neo4j: Neo4jSettings
    ) -> None:
        self.database = database
        self._orders = {"postgres": plain(postgres), "milvus": plain(milvus), "neo4j": plain(neo4j)}
        self._milvus, self._neo4j = milvus, neo4j

    def projection(self, target: Target) -> ProjectionTarget:
        if target is Target.MILVUS:
            return MilvusProjection(self.database, MilvusConnection(self._milvus), stored_embeddings(self.database))
        return Neo4jProjection(self.database, Neo4jConnection(self._neo4j))

    async def killed(self, orders: Mapping[str, Any]) -> None:
        """Run a child until it kills itself. Fails when it ends in any other way."""
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.crash.child",
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            text = json.dumps({**self._orders, "outbox": OUTBOX.model_dump(mode="json"), **orders})
            async with asyncio.timeout(120):
                _, errors = await child.communicate(text.encode())
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()
        assert child.returncode == -signal.SIGKILL, errors.decode(errors="replace")

    async def work_off(self, target: Target) -> None:
        """Run a worker in this process until no event of the target is unfinished."""
        projection = self.projection(target)
        stop = Signal()
        settings = OUTBOX.model_copy(update={"batch_size": 200})
        worker = asyncio.create_task(OutboxWorker(self.database, projection, settings).run(stop))
        try:
            async with asyncio.timeout(120):
                while await pending(self.database, projection):  # noqa: ASYNC110 - only the database knows
                    await asyncio.sleep(0.1)
        finally:
            stop.abort()
            await worker

    async def difference(self, target: Target) -> dict[str, int]:
        """What a full audit finds; the run must be complete."""
        projection = self.projection(target)
        try:
            report = await reconcile(self.database, projection, mode="audit")
        finally:
            await projection.close()
        assert report.state == "completed"
        return report.mismatches

    async def dead(self) -> int:
        """Events that were given up."""
        async with self.database.acquire() as connection:
            return int(
                await connection.fetchval(
                    self.database.sql("SELECT count(*) FROM {schema}.memory_outbox WHERE status = 'dead'")
                )
            )
