"""RecoveryStore and its tools (behaviours 6.3)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from memplane.recovery import RecoveryError, RecoveryStore, run_checkpoint
from memplane.recovery.documents import new_job, operation_fingerprint
from memplane.recovery.sqlite_jobs import SqliteJobs
from memplane.runtime import PermissionDenied
from memplane.workers.interaction.errors import InteractionError
from tests.recovery.world import ID, INPUT, ORDER, TEXT, world

REFUSED = (RecoveryError, InteractionError)


@pytest.mark.parametrize(
    "origin",
    ["ftp://host", "http://user:pw@host", "http://host/path", "http://host?x=1", "host", "", None, "http://"],
)
def test_j01_the_service_is_an_origin_without_credentials_or_path(tmp_path: Path, origin: Any) -> None:
    with pytest.raises(RecoveryError, match="Provide a service origin without credentials or path"):
        RecoveryStore(tmp_path, origin)


async def test_j01_the_folder_must_exist(tmp_path: Path) -> None:
    with pytest.raises(RecoveryError, match="does not exist"):
        RecoveryStore(tmp_path / "absent", "http://127.0.0.1:1")
    store = RecoveryStore(tmp_path, "http://127.0.0.1:1/")
    assert store.origin == "http://127.0.0.1:1"
    await store.close()


async def test_j02_create(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        job = await there.store.job(ID)
        assert job == {
            "schemaVersion": 1,
            "id": ID,
            "revision": 0,
            "stage": "queued",
            "sourceHash": "8c3afb697dd04879fee19729007dc52a83b9fb80d6a6c132982fd812f5c17076",
            "order": None,
            "context": None,
            "reservation": None,
            "shipment": None,
            "approval": None,
            "requiresApproval": False,
            "selectedSource": None,
            "error": None,
        }
        assert await there.events() == ["created"]
        for bad in (ID, "absent", "x" * 65, "../etc", ""):
            with pytest.raises(RecoveryError):
                await there.store.create(bad)


async def test_j03_unknown_tasks_and_schemas(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        with pytest.raises(RecoveryError, match="Unknown task"):
            await there.store.job("other")
        there.edit({"schemaVersion": 2})
        with pytest.raises(RecoveryError, match="Unsupported checkpoint schema"):
            await there.store.job(ID)
        there.edit({"schemaVersion": 1, "id": "other"})
        with pytest.raises(RecoveryError, match="Unsupported checkpoint schema"):
            await there.store.job(ID)


async def test_j03_every_change_is_one_revision_and_one_event_with_the_whole_task(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        job = await run_checkpoint(there.runtime, INPUT, stop_after="reserved")
        held = [
            event.data for event in await there.store.events(ID) if event.kind in ("prepared", "checkpoint-reserve")
        ]
        assert [data["revision"] for data in held] == [1, 2]
        assert held[-1] == job


async def test_j04_decisions(tmp_path: Path) -> None:
    async with world(tmp_path, approval=True) as there:
        with pytest.raises(RecoveryError, match="not awaiting"):
            await there.store.decide(ID, "approve", "ada")
        await run_checkpoint(there.runtime, INPUT, stop_after="prepared")
        await there.call("recovery_state", stage="paused", error=None)
        for decision, actor in (("maybe", "ada"), ("approve", " "), ("approve", "")):
            with pytest.raises(RecoveryError, match="A decision and authenticated actor are required"):
                await there.store.decide(ID, decision, actor)
        job = await there.store.decide(ID, "approve", "ada")
        assert job["stage"] == "approved"
        assert job["approval"] == {
            "actor": "ada",
            "decision": "approve",
            "fingerprint": "f795714bce150f6cd0fd11d4aa1214426980a53e80a9805232552baacac38041",
        }


async def test_j05_source_outcomes_in_order(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        read = await there.call("recovery_source", maxBytes=16)
        assert read["error"]["code"] == "SOURCE_TOO_LARGE"
        assert (read["error"]["retryable"], read["metadata"]["requiredBytes"]) == (True, len(TEXT))
        good = await there.call("recovery_source", maxBytes=65_536)
        assert good["structuredContent"]["text"] == TEXT
        (tmp_path / f"{ID}.txt").write_text(TEXT + "!")
        assert (await there.call("recovery_source", maxBytes=1))["error"]["code"] == "SOURCE_CHANGED"
        (tmp_path / f"{ID}.txt").unlink()
        assert (await there.call("recovery_source", maxBytes=1))["error"]["code"] == "SOURCE_NOT_FOUND"
        assert len(await there.events("source-read")) == 3, "none for a missing file"
        for wrong in (0, 65_537, True, "16", None):
            with pytest.raises(REFUSED):
                await there.call("recovery_source", maxBytes=wrong)


async def test_j05_an_empty_source(tmp_path: Path) -> None:
    async with world(tmp_path, text=" \n") as there:
        assert (await there.call("recovery_source", maxBytes=10))["error"]["code"] == "EMPTY_SOURCE"


async def test_j06_prepare_needs_a_queued_task_and_its_source(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        source_hash = (await there.store.job(ID))["sourceHash"]
        with pytest.raises(RecoveryError, match="Preparation checkpoint conflict"):
            await there.call("recovery_prepare", order=ORDER, context={}, sourceHash="0" * 64)
        await there.call("recovery_prepare", order=ORDER, context={}, sourceHash=source_hash)
        with pytest.raises(RecoveryError, match="Preparation checkpoint conflict"):
            await there.call("recovery_prepare", order=ORDER, context={}, sourceHash=source_hash)


async def test_j07_catalog(tmp_path: Path) -> None:
    async with world(tmp_path, faults={"primary_unavailable": True}) as there:
        await run_checkpoint(there.runtime, INPUT, stop_after="prepared")
        assert (await there.call("recovery_catalog", source="primary"))["error"]["code"] == "UNAVAILABLE"
        done = await there.call("recovery_catalog", source="backup")
        assert (done["structuredContent"]["selectedSource"], done["structuredContent"]["revision"]) == ("backup", 2)
        await there.service.close()
        assert (await there.call("recovery_catalog", source="backup"))["error"]["code"] == "UNAVAILABLE"
        with pytest.raises(REFUSED):
            await there.call("recovery_catalog", source="third")


async def test_j07_unknown_articles_keep_the_services_code(tmp_path: Path) -> None:
    async with world(tmp_path, answers=[{**ORDER, "sku": "NONE"}]) as there:
        await run_checkpoint(there.runtime, INPUT, stop_after="prepared")
        assert (await there.call("recovery_catalog", source="primary"))["error"]["code"] == "SKU_NOT_FOUND"


async def test_j08_operations_need_order_approval_and_stage(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        assert (await there.call("recovery_operation", kind="reserve", apply=False))["status"] == "success"
        with pytest.raises(RecoveryError, match="not authorized"):
            await there.call("recovery_operation", kind="reserve", apply=True)
        await run_checkpoint(there.runtime, INPUT, stop_after="prepared")
        for kind in ("ship", "release"):
            with pytest.raises(RecoveryError):
                await there.call("recovery_operation", kind=kind, apply=True)
        for wrong in ({"kind": "other", "apply": True}, {"kind": "reserve", "apply": "yes"}):
            with pytest.raises(REFUSED):
                await there.call("recovery_operation", **wrong)
        assert there.writes("/reserve") == there.writes("/ship") == 0


async def test_j09_a_conflict_reads_as_unknown_and_the_lookup_tells(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        await run_checkpoint(there.runtime, INPUT, stop_after="prepared")
        ledger = there.service._server.ledger
        other = {**ORDER, "quantity": 5}
        ledger.claim(f"{ID}-reserve", "reserve", other, f"{ID}-reserve")
        result = await there.call("recovery_operation", kind="reserve", apply=True)
        assert (result["status"], result["error"]["code"]) == ("unknown", "OUTCOME_UNKNOWN")
        with pytest.raises(RecoveryError, match="Remote operation fingerprint conflict"):
            await there.call("recovery_operation", kind="reserve", apply=False)


async def test_j09_a_lost_service_is_unknown_for_writes_and_failed_for_lookups(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        await run_checkpoint(there.runtime, INPUT, stop_after="prepared")
        await there.service.close()
        assert (await there.call("recovery_operation", kind="reserve", apply=True))["status"] == "unknown"
        lookup = await there.call("recovery_operation", kind="reserve", apply=False)
        assert (lookup["status"], lookup["error"]["code"]) == ("failed", "LOOKUP_UNAVAILABLE")


async def test_j11_a_checkpoint_of_a_finished_task_only_counts_the_revision(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        done = await run_checkpoint(there.runtime, INPUT)
        operation = {
            "state": "committed",
            "fingerprint": operation_fingerprint(ID, "reserve", ORDER),
            "result": {"reservationKey": f"{ID}-reserve", **ORDER},
        }
        result = await there.call("recovery_checkpoint", kind="reserve", operation=operation)
        assert result["structuredContent"] == {**done, "revision": done["revision"] + 1}


async def test_j13_the_report_is_atomic_and_changes_no_revision(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        await there.call("recovery_report")
        text = (tmp_path / "results" / f"{ID}.json").read_text()
        job = await there.store.job(ID)
        assert text == json.dumps(job, indent=2, ensure_ascii=False) + "\n"
        assert job["revision"] == 0
        assert [path.name for path in (tmp_path / "results").iterdir()] == [f"{ID}.json"]


async def test_j13_every_tool_checks_the_id(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        for tool in there.store.tools:
            for wrong in ("../x", "", None, "x" * 65):
                call = {"id": "c", "name": tool.name, "arguments": {"id": wrong}}
                with pytest.raises(REFUSED):
                    await there.runtime.invoke("INTERACTION.ACT.TOOL", {"call": call})


async def test_j14_the_sandbox_must_grant_the_network(tmp_path: Path) -> None:
    async with world(tmp_path, network=False) as there:
        await run_checkpoint(there.runtime, INPUT, stop_after="prepared")
        with pytest.raises(PermissionDenied):
            await there.call("recovery_operation", kind="reserve", apply=True)
        assert await there.events("operation-write") == ["operation-write"], "the intention is on record"
        assert there.requests() == []


async def test_two_processes_do_not_lose_a_change(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        other = SqliteJobs(tmp_path / "tasks.sqlite")
        await other.open()

        async def count(jobs: Any) -> None:
            for _ in range(20):
                await jobs.change(ID, "counted", lambda job: dict(job))

        await asyncio.gather(count(there.store.database), count(other))
        assert (await other.load(ID))["revision"] == 40
        await other.close()


async def test_a_lease_has_one_owner_until_it_ends(tmp_path: Path) -> None:
    now = [100.0]
    jobs = SqliteJobs(tmp_path / "tasks.sqlite", clock=lambda: now[0])
    await jobs.open()
    await jobs.insert(new_job("j", "hash", requires_approval=False))
    assert await jobs.acquire("j", "a", 10)
    assert not await jobs.acquire("j", "b", 10)
    now[0] += 5
    assert await jobs.acquire("j", "a", 10), "renewed"
    now[0] += 11
    assert await jobs.acquire("j", "b", 10), "the killed owner's lease has ended"
    await jobs.release("j", "a")
    assert not await jobs.acquire("j", "a", 10), "only the owner gives it back"
    await jobs.release("j", "b")
    assert await jobs.acquire("j", "a", 10)
    await jobs.close()
