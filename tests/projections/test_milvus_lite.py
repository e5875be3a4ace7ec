"""The same target on a Milvus Lite file, as `memplane dev` and the demo use it."""

from __future__ import annotations

from pathlib import Path

from memplane.outbox.events import Verdict
from memplane.projections.clients import MilvusConnection
from memplane.projections.milvus import MilvusProjection
from memplane.projections.milvus_row import digest
from memplane.reconcile import reconcile
from memplane.schema.database import Database
from memplane.settings import MilvusSettings
from tests.projections.support import rows, stored_embeddings, task, truth
from tests.projections.world import World


async def test_a_lite_file_behaves_like_a_server(database: Database, tmp_path: Path) -> None:
    settings = MilvusSettings(uri=str(tmp_path / "lite.db"))
    projection = MilvusProjection(database, MilvusConnection(settings), stored_embeddings(database))
    assert projection.milvus.lite
    fields = {"metadata": {"a": [1, None], "big": 10**30}, "tags": ["x"], "category": "c", "importance": 0.5}
    batch = [task(truth(1, 2, **fields)), task(truth(2)), task(truth(3, 1, live=False))]
    applied, unchanged, ahead = Verdict.APPLIED, Verdict.UNCHANGED, Verdict.AHEAD
    assert [one.verdict for one in await projection.project(batch, timeout=30)] == [applied, applied, unchanged]
    assert [one.verdict for one in await projection.project(batch, timeout=30)] == [unchanged] * 3
    assert [one.verdict for one in await projection.project([task(truth(1, 1))], timeout=30)] == [ahead]
    assert list(await projection.settled(batch, timeout=30)) == [True] * 3
    row = (await rows(projection))[1]
    assert digest(row, (await projection.generation()).space) == row["projection_hash"]
    await projection.close()

    again = MilvusProjection(database, MilvusConnection(settings), stored_embeddings(database))
    assert await again.healthy()
    assert set(await rows(again)) == {1, 2}
    world = World(database, again)
    await world.write([None, None], [])
    await world.deliver(await world.events())
    async with database.acquire() as connection:
        await connection.execute(database.sql("UPDATE {schema}.memory_outbox SET status = 'processed'"))
    report = await reconcile(database, again, mode="audit")
    held = {int(number) for number in world.ids} | {1, 2}
    assert set(await rows(again)) == held
    assert report.state == "completed"
    await again.close()
