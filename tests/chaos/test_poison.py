"""Poisoned events end like others, and take nobody with them."""

from __future__ import annotations

import random

import pytest
from chaos.faults import POISONS
from chaos.poison import poison

from memplane.outbox.events import Target
from memplane.schema.database import Database
from tests.outbox.test_worker import done, running
from tests.outbox.world import DictTarget, create, quick, statuses


@pytest.mark.parametrize("kind", POISONS)
async def test_a_worker_gets_past_poison(database: Database, kind: str) -> None:
    ids = await create(database, 10)
    target = DictTarget(Target.MILVUS)
    async with running(database, target, quick()):
        await done(database, 60)
        async with database.acquire() as connection:
            inserted = [await poison(connection, kind, random.Random(seed)) for seed in range(8)]
            await connection.execute(
                database.sql("DELETE FROM {schema}.memory_outbox WHERE target = 'neo4j'")  # has no worker here
            )
        assert any(inserted)
        more = await create(database, 10)
        await done(database, 60)
    assert set(target.held) >= set(ids) | set(more)
    assert set(await statuses(database)) == {"processed"}
