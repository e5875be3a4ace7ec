"""A run that broke off is taken up where it stopped, by the same rules whether it was killed, cancelled or failed."""

from __future__ import annotations

import asyncio
import json
import os
import signal as signals
import sys
from pathlib import Path

import pytest

from memplane.outbox.events import Target
from memplane.projections.milvus import MilvusProjection
from memplane.projections.neo4j import Neo4jProjection
from memplane.reconcile import AlreadyRunning, Report, RunLost, last_clean_full_runs, reconcile
from memplane.reconcile import run as run_module
from memplane.reconcile import scan as scan_module
from memplane.reconcile.beginning import ABANDONED, end_abandoned
from memplane.reconcile.listing import list_runs
from memplane.reconcile.report import Progress
from memplane.schema.database import Database
from memplane.settings import MilvusSettings, ReconcileSettings, Settings
from memplane.signal import Signal
from tests.http.processes import write_settings
from tests.reconcile.support import cypher, delete_row, drain, insert_row, pending, populated


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "PAGE", 3)


async def broken_off(database: Database, target: MilvusProjection, mode: str = "repair", pages: int = 2) -> Report:
    """A run that is cancelled after some pages."""
    signal, seen = Signal(), 0

    def count(_: Progress) -> None:
        nonlocal seen
        seen += 1
        if seen == pages:
            signal.abort()

    return await reconcile(database, target, mode=mode, signal=signal, progress=count)  # type: ignore[arg-type]


async def test_the_next_run_goes_on_where_it_stopped(database: Database, milvus: MilvusProjection) -> None:
    _, ids = await populated(database, milvus, 12)
    for place in (1, 4, 7, 10):
        await delete_row(milvus, ids[place])
    first = await broken_off(database, milvus)
    assert (first.state, first.scanned, first.repaired) == ("cancelled", 6, {"missing": 2})
    second = await reconcile(database, milvus, mode="repair")
    assert (second.run_id, second.resumed, second.state) == (first.run_id, 1, "completed")
    assert (second.scanned, second.mismatches, second.repaired) == (12, {"missing": 4}, {"missing": 4})
    assert await pending(database, milvus) == 4
    [run] = await list_runs(database)
    clean = await last_clean_full_runs(database, [Target.MILVUS])
    assert clean[Target.MILVUS].started_at == run.started_at
    assert run.started_at < run.finished_at  # type: ignore[operator]


async def test_orphans_that_were_put_aside_are_not_forgotten(database: Database, milvus: MilvusProjection) -> None:
    world, ids = await populated(database, milvus, 12)
    row = await insert_row(milvus, ids[0])
    await world.delete(0)
    await drain(database, milvus)
    await insert_row(milvus, ids[0], row)
    first = await broken_off(database, milvus)
    assert (first.mismatches, first.repaired) == ({"orphan": 1}, {})
    second = await reconcile(database, milvus, mode="repair")
    assert (second.run_id, second.repaired) == (first.run_id, {"orphan": 1})


@pytest.mark.parametrize("what", ["mode", "kind", "age", "told", "generation", "lineage"])
async def test_what_cannot_go_on_is_begun_anew(database: Database, milvus: MilvusProjection, what: str) -> None:
    await populated(database, milvus, 9)
    first = await broken_off(database, milvus)
    spoiled = {"generation": "generation_id = -1", "lineage": "lineage = 'other'"}
    if what in spoiled:
        async with database.acquire() as connection:
            await connection.execute(database.sql(f"UPDATE {{schema}}.reconciliation_run SET {spoiled[what]}"))
    second = await reconcile(
        database,
        milvus,
        mode="audit" if what == "mode" else "repair",
        kind="incremental" if what == "kind" else "full",
        resume=what != "told",
        settings=ReconcileSettings(resume_seconds=0) if what == "age" else None,
    )
    # Without a complete run before, an incremental run is a full one, and goes on with it.
    assert (second.run_id == first.run_id) == (what == "kind")
    assert (second.state, second.scanned) == ("completed", 9)


async def test_a_run_that_lives_is_not_taken_over(
    database: Database, neo4j: Neo4jProjection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "HEARTBEAT_SECONDS", 0.2)
    await populated(database, neo4j, 9)
    slow, signal, begun = ReconcileSettings(rows_per_second=0.5), Signal(), asyncio.Event()
    running = asyncio.create_task(
        reconcile(database, neo4j, mode="audit", settings=slow, signal=signal, progress=lambda _: begun.set())
    )
    try:
        await asyncio.wait_for(begun.wait(), 20)
        with pytest.raises(AlreadyRunning):
            await reconcile(database, neo4j, mode="audit")
        assert not running.done()
    finally:
        signal.abort()
        report = await running
    assert (report.state, report.scanned) == ("cancelled", 3)


async def test_who_was_thought_dead_records_and_repairs_nothing_more(
    database: Database, milvus: MilvusProjection, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, ids = await populated(database, milvus, 12)
    await delete_row(milvus, ids[10])
    stolen: list[Report] = []

    async def steal() -> None:
        assert await end_abandoned(database, stale_seconds=-1.0)
        stolen.append(await reconcile(database, milvus, mode="audit", resume=False))

    first = True

    class Thief:
        """Lets the other one have the run at the first step of this one."""

        async def keep(self, compared: int) -> None:
            nonlocal first
            if first:
                first = False
                await steal()

    monkeypatch.setattr(run_module, "Pace", lambda *_: Thief())
    with pytest.raises(RunLost):
        await reconcile(database, milvus, mode="repair")
    assert stolen[0].mismatches == {"missing": 1}
    assert await pending(database, milvus) == 0
    newest, oldest = await list_runs(database)
    assert (newest.state, oldest.state) == ("completed", "failed")


async def test_runs_whose_process_has_gone_are_ended(database: Database, milvus: MilvusProjection) -> None:
    await populated(database, milvus)
    await reconcile(database, milvus, mode="audit")
    async with database.acquire() as connection:
        await connection.execute(
            database.sql(
                "UPDATE {schema}.reconciliation_run SET state = 'running', finished_at = NULL,"
                " heartbeat_at = now() - interval '1 minute'"
            )
        )
    assert len(await end_abandoned(database)) == 1
    [run] = await list_runs(database)
    assert (run.state, run.error) == ("failed", ABANDONED)
    assert run.finished_at == run.heartbeat_at


async def test_a_graph_run_goes_on_too(database: Database, neo4j: Neo4jProjection) -> None:
    _, ids = await populated(database, neo4j, 12)
    await cypher(neo4j, "MATCH (m:Memory {backend: $backend}) WHERE m.memory_id >= $id DETACH DELETE m", id=ids[0])
    signal = Signal()
    first = await reconcile(database, neo4j, mode="repair", signal=signal, progress=lambda _: signal.abort())
    second = await reconcile(database, neo4j, mode="repair")
    assert (first.repaired, second.repaired, second.resumed) == ({"missing": 3}, {"missing": 12}, 1)


async def test_a_killed_process_is_succeeded_at_its_position(
    database: Database, milvus: MilvusProjection, milvus_settings: MilvusSettings, tmp_path: Path
) -> None:
    """SIGKILL in the middle of a run: the next one begins at the recorded position and finds the rest, once."""
    _, ids = await populated(database, milvus, 12)
    for memory_id in (ids[1], ids[10]):
        await delete_row(milvus, memory_id)
    settings = Settings(
        postgres=database.settings, milvus=milvus_settings, reconcile=ReconcileSettings(rows_per_second=1)
    )
    config = write_settings(settings, tmp_path / "memplane.yaml")
    script = "import memplane.reconcile.scan as s; s.PAGE = 3; from memplane.cli import main; main()"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, "--config", str(config), "--json", "reconcile", "milvus", "--full", "--repair",
        stdout=asyncio.subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        async with asyncio.timeout(60):
            while not (runs := await list_runs(database)) or runs[0].scanned == 0:
                assert process.returncode is None
                await asyncio.sleep(0.2)
    finally:
        os.killpg(process.pid, signals.SIGKILL)
        await process.wait()
    [killed] = await list_runs(database)
    assert (killed.state, dict(killed.repaired)) == ("running", {"missing": 1})
    assert 3 <= killed.scanned < 12
    # Nobody needs to wait for its heartbeat to grow old in a test.
    assert await end_abandoned(database, stale_seconds=-60) == [killed.id]
    report = await reconcile(database, milvus, mode="repair")
    assert (report.run_id, report.resumed, report.state) == (killed.id, 1, "completed")
    assert (report.scanned, report.mismatches, report.repaired) == (12, {"missing": 2}, {"missing": 2})
    async with database.acquire() as connection:
        started = await connection.fetchval(database.sql("SELECT started_at FROM {schema}.reconciliation_run"))
        text = await connection.fetchval(database.sql("SELECT samples FROM {schema}.reconciliation_run"))
    assert started == killed.started_at
    assert {sample["memory_id"] for sample in json.loads(text)} == {ids[1], ids[10]}
