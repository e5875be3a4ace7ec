"""The eight entries, case by case (behaviours 6.4 and 6.5)."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from memplane.recovery import (
    RecoveryError,
    resume_paused,
    run_checkpoint,
    run_compensation,
    run_fallback,
    run_pause,
    run_retry,
    run_session,
    run_side_effect_check,
    run_timeout,
)
from memplane.signal import Signal
from tests.recovery.world import ID, INPUT, ORDER, TEXT, World, world


def consistent(there: World, job: dict[str, Any], *, stock: int = 20) -> None:
    """V-32: what the stage says is what the service's database holds."""
    shipments = there.rows("SELECT count(*) FROM shipments")[0][0]
    active = there.rows("SELECT count(*) FROM reservations WHERE status = 'active'")[0][0]
    assert there.stock() == stock - 2 * active
    if job["stage"] == "completed":
        assert (there.writes("/reserve"), there.writes("/ship"), shipments) == (1, 1, 1)
    if job["stage"] in ("failed", "timed-out", "rejected", "queued") and job["error"] != "INSUFFICIENT_STOCK":
        assert there.writes("/reserve") == 0


async def test_v05_prepare_asks_the_model_once_and_any_other_stage_touches_nothing(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        job = await run_checkpoint(there.runtime, INPUT, stop_after="prepared")
        assert (job["stage"], job["revision"], there.model.calls) == ("prepared", 1, 1)
        (tmp_path / f"{ID}.txt").unlink()
        await run_checkpoint(there.runtime, INPUT, stop_after="prepared")
        assert there.model.calls == 1


@pytest.mark.parametrize(
    "answer",
    [
        {**ORDER, "quantity": -1},
        {**ORDER, "quantity": "2"},
        {"sku": "SKU-731"},
        "not json",
        {"message": {"role": "assistant", "content": "{}"}, "finishReason": "length"},
        RuntimeError("provider broke"),
    ],
)
async def test_v06_an_unusable_model_answer_raises_and_changes_nothing(tmp_path: Path, answer: Any) -> None:
    async with world(tmp_path, answers=[answer]) as there:
        with pytest.raises(RecoveryError):
            await run_checkpoint(there.runtime, INPUT)
        assert (await there.store.job(ID))["stage"] == "queued"
        assert there.writes("/reserve") == 0


async def test_v06_code_fences_are_tolerated(tmp_path: Path) -> None:
    fenced = '```json\n{"sku": "SKU-731", "quantity": 2, "address": "Dock-North"}\n```'
    async with world(tmp_path, answers=[fenced]) as there:
        assert (await run_checkpoint(there.runtime, INPUT))["stage"] == "completed"


async def test_v07_a_pending_operation_stays_uncertain(tmp_path: Path) -> None:
    async with world(tmp_path, faults={"reservation_delay_ms": 400}) as there:
        await run_checkpoint(there.runtime, INPUT, stop_after="prepared")
        first = asyncio.create_task(run_side_effect_check(there.runtime, INPUT))
        while there.writes("/reserve") == 0:  # noqa: ASYNC110 - the service can only be asked
            await asyncio.sleep(0.01)
        job = await run_side_effect_check(there.runtime, INPUT)
        assert (job["stage"], job["error"]) == ("uncertain", "OPERATION_PENDING")
        assert (await first)["stage"] == "completed"


@pytest.mark.parametrize("stage", ["completed", "compensated", "rejected", "failed", "needs-review", "paused"])
async def test_v08_finished_stages_are_returned_unchanged(tmp_path: Path, stage: str) -> None:
    async with world(tmp_path) as there:
        await run_checkpoint(there.runtime, INPUT, stop_after="prepared")
        there.edit({"stage": stage})
        before = await there.store.job(ID)
        assert await run_checkpoint(there.runtime, INPUT) == before
        assert there.requests() == []


async def test_v08_a_task_without_its_approval_is_returned_unchanged(tmp_path: Path) -> None:
    async with world(tmp_path, approval=True) as there:
        job = await run_checkpoint(there.runtime, INPUT)
        assert job["stage"] == "prepared"
        assert there.requests() == []


async def test_v08_a_rejected_reservation_fails_the_task(tmp_path: Path) -> None:
    async with world(tmp_path, stock=1) as there:
        job = await run_checkpoint(there.runtime, INPUT)
        assert (job["stage"], job["error"]) == ("failed", "INSUFFICIENT_STOCK")


async def test_v09_the_happy_path_step_by_step(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        job = await run_checkpoint(there.runtime, INPUT)
        assert (job["stage"], job["revision"]) == ("completed", 3)
        assert there.requests() == [
            ("GET", f"/operations/{ID}-reserve"),
            ("POST", "/reserve"),
            ("GET", f"/operations/{ID}-ship"),
            ("POST", "/ship"),
        ]
        assert await there.events() == [
            "created",
            "source-read",
            "prepared",
            "operation-lookup",
            "operation-write",
            "checkpoint-reserve",
            "operation-lookup",
            "operation-write",
            "checkpoint-ship",
        ]
        assert there.stock() == 18
        consistent(there, job)


async def test_v10_retry_reads_again_with_what_it_needs(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        job = await run_retry(there.runtime, INPUT)
        assert job["stage"] == "completed"
        reads = [event.data for event in await there.store.events(ID) if event.kind == "source-read"]
        assert [read["maxBytes"] for read in reads] == [16, len(TEXT)]
        assert (there.model.calls, there.writes("/reserve"), there.writes("/ship"), there.stock()) == (1, 1, 1, 18)
        consistent(there, job)


@pytest.mark.parametrize("trouble", ["SOURCE_TOO_LARGE", "SOURCE_NOT_FOUND", "SOURCE_CHANGED"])
async def test_v11_a_permanent_or_exhausted_failure_ends_the_task(tmp_path: Path, trouble: str) -> None:
    async with world(tmp_path) as there:
        file = tmp_path / f"{ID}.txt"
        if trouble == "SOURCE_NOT_FOUND":
            file.unlink()
        if trouble == "SOURCE_CHANGED":
            file.write_text(TEXT + " changed")
        job = await run_retry(there.runtime, {**INPUT, "maxAttempts": 1})
        assert (job["stage"], job["error"]) == ("failed", trouble)
        assert (there.model.calls, there.writes("/reserve")) == (0, 0)
        assert there.result()["stage"] == "failed"


@pytest.mark.parametrize("trouble", ["missing", "changed"])
async def test_v11_missing_and_changed_sources_stop_after_one_read(tmp_path: Path, trouble: str) -> None:
    async with world(tmp_path) as there:
        file = tmp_path / f"{ID}.txt"
        file.unlink() if trouble == "missing" else file.write_text("other")
        await run_retry(there.runtime, INPUT)
        assert len(await there.events("source-read")) == (0 if trouble == "missing" else 1)


@pytest.mark.parametrize(
    "limits",
    [
        {"maxAttempts": 0},
        {"maxAttempts": 6},
        {"maxAttempts": True},
        {"initialMaxBytes": 0},
        {"initialMaxBytes": 65_537},
    ],
)
async def test_v12_limits_are_checked_before_any_work(tmp_path: Path, limits: dict[str, Any]) -> None:
    async with world(tmp_path) as there:
        with pytest.raises(RecoveryError, match="Invalid retry limits"):
            await run_retry(there.runtime, {**INPUT, **limits})
        assert await there.events() == ["created"]


async def test_v12_larger_files_are_never_retried_and_other_stages_go_on(tmp_path: Path) -> None:
    async with world(tmp_path, text="x" * 65_537) as there:
        job = await run_retry(there.runtime, INPUT)
        assert (job["stage"], job["error"]) == ("failed", "SOURCE_TOO_LARGE")
        assert len(await there.events("source-read")) == 1


async def test_v13_fallback_uses_the_backup_when_the_primary_is_away(tmp_path: Path) -> None:
    async with world(tmp_path, faults={"primary_unavailable": True}) as there:
        job = await run_fallback(there.runtime, INPUT)
        assert (job["stage"], job["selectedSource"], there.writes("/reserve")) == ("completed", "backup", 1)
        consistent(there, job)


async def test_v13_a_source_that_is_not_allowed_is_not_asked(tmp_path: Path) -> None:
    async with world(tmp_path, faults={"primary_unavailable": True}) as there:
        job = await run_fallback(there.runtime, {**INPUT, "allowedSources": ["primary"]})
        assert (job["stage"], job["error"], job["selectedSource"]) == ("failed", "UNAVAILABLE", None)
        assert (there.writes("/reserve"), there.model.calls) == (0, 1)


async def test_v14_a_business_refusal_is_not_overridden_by_another_source(tmp_path: Path) -> None:
    async with world(tmp_path, stock=0) as there:
        job = await run_fallback(there.runtime, INPUT)
        assert (job["stage"], job["error"]) == ("failed", "INSUFFICIENT_STOCK")
        assert ("GET", "/catalog/backup") not in there.requests()


@pytest.mark.parametrize("allowed", [[], ["primary", "primary"], ["other"], "primary", None])
async def test_v15_the_allowlist_is_checked_before_any_work(tmp_path: Path, allowed: Any) -> None:
    async with world(tmp_path) as there:
        with pytest.raises(RecoveryError, match="Invalid fallback allowlist"):
            await run_fallback(there.runtime, {**INPUT, "allowedSources": allowed})
        assert await there.events() == ["created"]


async def test_v16_a_late_catalog_is_timed_out(tmp_path: Path) -> None:
    async with world(tmp_path, faults={"catalog_delay_ms": 1500}) as there:
        await run_checkpoint(there.runtime, INPUT, stop_after="prepared")
        started = time.monotonic()
        job = await run_timeout(there.runtime, {**INPUT, "timeoutMs": 30})
        assert (job["stage"], job["error"]) == ("timed-out", "CATALOG_TIMEOUT")
        assert time.monotonic() - started < 1.2, "it did not wait for the catalog"
        assert there.writes("/reserve") == 0


async def test_v17_the_callers_own_abort_is_raised(tmp_path: Path) -> None:
    async with world(tmp_path, faults={"catalog_delay_ms": 600}) as there:
        await run_checkpoint(there.runtime, INPUT, stop_after="prepared")
        await run_timeout(there.runtime, {**INPUT, "timeoutMs": 20})
        signal = Signal()
        signal.abort(KeyError("caller"))
        with pytest.raises(KeyError, match="caller"):
            await run_timeout(there.runtime, INPUT, signal=signal)
        assert (await there.store.job(ID))["stage"] == "timed-out"


async def test_v18_in_time_is_completed_and_a_timed_out_task_may_be_entered_again(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        assert (await run_timeout(there.runtime, {**INPUT, "timeoutMs": 5000}))["stage"] == "completed"
    again = tmp_path / "again"
    again.mkdir()
    async with world(again, faults={"catalog_delay_ms": 300}) as there:
        assert (await run_timeout(there.runtime, {**INPUT, "timeoutMs": 20}))["stage"] == "timed-out"
        assert (await run_timeout(there.runtime, {**INPUT, "timeoutMs": 10_000}))["stage"] == "completed"
    for value in (0, 60_001, 1.5):
        with pytest.raises(RecoveryError, match="Invalid timeout"):
            await run_timeout(there.runtime, {**INPUT, "timeoutMs": value})


async def test_v19_a_checkpoint_is_resumed_in_another_process(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        job = await run_checkpoint(there.runtime, INPUT, stop_after="reserved")
        assert (job["stage"], there.model.calls, there.writes("/ship")) == ("reserved", 1, 0)
    async with world(tmp_path, create=False) as there:
        assert (await run_checkpoint(there.runtime, INPUT))["stage"] == "completed"
        assert (await run_checkpoint(there.runtime, INPUT))["stage"] == "completed"
        assert (there.model.calls, there.writes("/reserve"), there.writes("/ship")) == (0, 1, 1)
        assert there.requests().count(("GET", f"/operations/{ID}-reserve")) == 1, "not even looked up again"
        assert there.result()["stage"] == "completed"


async def test_v19_stop_after_prepared_makes_no_request(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        assert (await run_checkpoint(there.runtime, INPUT, stop_after="prepared"))["stage"] == "prepared"
        assert there.requests() == []


async def test_v20_a_signal_aborted_before_changes_nothing(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        signal = Signal()
        signal.abort(KeyError("before"))
        with pytest.raises(KeyError):
            await run_checkpoint(there.runtime, INPUT, signal=signal)
        assert (await there.store.job(ID))["stage"] == "queued"
        assert there.model.calls == 0


async def test_v21_a_person_decides(tmp_path: Path) -> None:
    async with world(tmp_path, approval=True) as there:
        assert (await run_pause(there.runtime, INPUT))["stage"] == "paused"
        assert (await resume_paused(there.runtime, INPUT))["stage"] == "paused"
        with pytest.raises(RecoveryError, match="authorized"):
            await there.call("recovery_operation", kind="reserve", apply=True)
        assert there.writes("/reserve") == 0
    async with world(tmp_path, create=False) as there:
        await there.store.decide(ID, "approve", "ada")
        job = await resume_paused(there.runtime, INPUT)
        assert (job["stage"], there.writes("/reserve"), there.model.calls) == ("completed", 1, 0)
        with pytest.raises(RecoveryError, match="awaiting"):
            await there.store.decide(ID, "reject", "ada")


async def test_v21_a_rejected_task_stays_rejected(tmp_path: Path) -> None:
    async with world(tmp_path, approval=True) as there:
        await run_pause(there.runtime, INPUT)
        await there.store.decide(ID, "reject", "ada")
        assert (await resume_paused(there.runtime, INPUT))["stage"] == "rejected"
        assert there.writes("/reserve") == 0


async def test_v22_the_approval_covers_exactly_the_order_that_was_shown(tmp_path: Path) -> None:
    async with world(tmp_path, approval=True) as there:
        await run_pause(there.runtime, INPUT)
        await there.store.decide(ID, "approve", "ada")
        there.edit({"order": {**ORDER, "quantity": 9}})
        with pytest.raises(RecoveryError, match="authorized"):
            await resume_paused(there.runtime, INPUT)
        assert there.writes("/reserve") == 0


async def test_v23_pausing_needs_a_task_that_was_created_for_it(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        with pytest.raises(RecoveryError, match="Create this task with requiresApproval enabled"):
            await run_pause(there.runtime, INPUT)
        assert (await there.store.job(ID))["stage"] == "prepared"
        with pytest.raises(RecoveryError, match="A persisted approval is required"):
            await resume_paused(there.runtime, INPUT)


async def test_v24_a_session_goes_on_after_a_restart(tmp_path: Path) -> None:
    answer = {"sku": "SKU-731", "quantity": 2, "stage": "reserved"}
    async with world(tmp_path) as there:
        reserved = await run_checkpoint(there.runtime, INPUT, stop_after="reserved")
    async with world(tmp_path, create=False, answers=[answer]) as there:
        done = await run_session(there.runtime, {**INPUT, "question": "How far is it?"})
        assert done["answer"] == answer
        assert (done["job"]["stage"], done["job"]["revision"]) == ("reserved", reserved["revision"] + 1)
        items = {item["id"]: item["content"] for item in done["job"]["context"]["items"]}
        assert set(items) == {f"{ID}-request", f"{ID}-current-state", f"{ID}-question-2", f"{ID}-answer-2"}
        assert items[f"{ID}-question-2"] == "How far is it?"
        assert there.writes("/ship") == 0
        again = await run_session(there.runtime, INPUT)
        ids = [item["id"] for item in again["job"]["context"]["items"]]
        assert ids.count(f"{ID}-current-state") == 1, "replaced each time"
    async with world(tmp_path, create=False) as there:
        ids = [item["id"] for item in (await there.store.job(ID))["context"]["items"]]
        assert any("-answer-" in name for name in ids)


@pytest.mark.parametrize(
    "answer", [{"sku": "SKU-731", "quantity": 3, "stage": "prepared"}, {"sku": "SKU-731", "quantity": 2}, "no"]
)
async def test_v25_an_answer_that_does_not_fit_stores_nothing(tmp_path: Path, answer: Any) -> None:
    async with world(tmp_path) as there:
        await run_checkpoint(there.runtime, INPUT, stop_after="prepared")
        before = await there.store.job(ID)
        there.model.answers, there.model.calls = [answer], 0
        with pytest.raises(RecoveryError):
            await run_session(there.runtime, INPUT)
        assert await there.store.job(ID) == before


@pytest.mark.parametrize("question", ["", "  ", "x" * 1001, 1])
async def test_v25_questions_are_bounded_and_a_queued_task_is_prepared_first(tmp_path: Path, question: Any) -> None:
    async with world(tmp_path) as there:
        with pytest.raises(RecoveryError, match="Invalid session question"):
            await run_session(there.runtime, {**INPUT, "question": question})
        assert (await there.store.job(ID))["stage"] == "prepared"


async def test_v26_a_rejected_shipment_is_compensated_once(tmp_path: Path) -> None:
    async with world(tmp_path, faults={"reject_shipping": True}) as there:
        job = await run_compensation(there.runtime, INPUT)
        assert (job["stage"], job["error"], job["revision"]) == ("compensated", "ADDRESS_REJECTED", 4)
        states = dict(there.rows("SELECT kind, state FROM operations"))
        assert (there.stock(), states["ship"], states["release"]) == (20, "rejected", "committed")
        assert there.result()["stage"] == "compensated"
    async with world(tmp_path, create=False, faults={"reject_shipping": True}) as there:
        assert (await run_compensation(there.runtime, INPUT))["stage"] == "compensated"
        assert there.writes("/release") == 1


async def test_v27_a_rejected_release_needs_a_person(tmp_path: Path) -> None:
    async with world(tmp_path, faults={"reject_shipping": True, "reject_release": True}) as there:
        for _ in range(2):
            job = await run_compensation(there.runtime, INPUT)
            assert (job["stage"], job["error"]) == ("needs-review", "COMPENSATION_RELEASE_REJECTED")
        assert (there.stock(), there.writes("/release")) == (18, 1)


async def test_v27_without_compensation_nothing_is_released(tmp_path: Path) -> None:
    async with world(tmp_path, faults={"reject_shipping": True}) as there:
        job = await run_checkpoint(there.runtime, INPUT)
        assert (job["stage"], job["error"]) == ("needs-review", "ADDRESS_REJECTED")
        assert there.writes("/release") == 0


async def test_v28_a_lost_response_is_looked_up_and_not_sent_again(tmp_path: Path) -> None:
    async with world(tmp_path, faults={"drop_reservation_response": True}) as there:
        job = await run_side_effect_check(there.runtime, INPUT)
        assert job["stage"] == "completed"
        assert (there.writes("/reserve"), there.writes("/ship"), there.stock()) == (1, 1, 18)
        assert len(await there.events("operation-lookup")) >= 3
        consistent(there, job)


async def test_v29_a_lost_response_without_lookups_stays_uncertain_until_they_are_back(tmp_path: Path) -> None:
    faults = {"drop_reservation_response": True, "lookup_unavailable_after_write": True}
    async with world(tmp_path, faults=faults) as there:
        job = await run_side_effect_check(there.runtime, INPUT)
        assert (job["stage"], job["error"]) == ("uncertain", "OUTCOME_UNKNOWN")
        assert (there.writes("/reserve"), there.writes("/ship"), there.model.calls) == (1, 0, 1)
    async with world(tmp_path, create=False) as there:
        job = await run_side_effect_check(there.runtime, INPUT)
        assert (job["stage"], there.writes("/reserve"), there.model.calls) == ("completed", 1, 0)
        consistent(there, job)


async def test_v30_nothing_is_written_while_lookups_are_down(tmp_path: Path) -> None:
    async with world(tmp_path, faults={"lookup_unavailable": True}) as there:
        job = await run_side_effect_check(there.runtime, INPUT)
        assert (job["stage"], there.writes("/reserve")) == ("uncertain", 0)


async def test_v31_an_abort_in_the_middle_of_a_write_is_raised_and_the_write_is_found_later(tmp_path: Path) -> None:
    async with world(tmp_path, faults={"reservation_delay_ms": 700}) as there:
        await run_checkpoint(there.runtime, INPUT, stop_after="prepared")
        signal = Signal()
        task = asyncio.create_task(run_side_effect_check(there.runtime, INPUT, signal=signal))
        while there.writes("/reserve") == 0:  # noqa: ASYNC110 - the service can only be asked
            await asyncio.sleep(0.005)
        signal.abort(KeyError("caller"))
        with pytest.raises(KeyError, match="caller"):
            await task
        assert (await there.store.job(ID))["stage"] == "prepared"
        assert there.rows("SELECT state FROM operations") == [("pending",)]
        job = await run_side_effect_check(there.runtime, INPUT)
        assert (job["stage"], there.writes("/reserve"), there.writes("/release")) == ("uncertain", 1, 0)
        while there.rows("SELECT state FROM operations") == [("pending",)]:  # noqa: ASYNC110 - the service can only be asked
            await asyncio.sleep(0.02)
        job = await run_side_effect_check(there.runtime, INPUT)
        assert (job["stage"], there.stock(), there.writes("/reserve")) == ("completed", 18, 1)


async def test_v32_databases_and_files_are_the_same_after_reopening(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        job = await run_checkpoint(there.runtime, INPUT)
        tables = ("inventory", "operations", "reservations", "shipments")
        before = [there.rows(f"SELECT * FROM {name}") for name in tables]
        file = there.result()
    async with world(tmp_path, create=False) as there:
        assert await there.store.job(ID) == job == file == there.result()
        assert [there.rows(f"SELECT * FROM {name}") for name in tables] == before
