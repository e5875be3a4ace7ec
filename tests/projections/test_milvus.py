"""The Milvus target on a real server."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

import pytest

from memplane.errors import TargetUnavailable
from memplane.outbox.events import TaskFailed, Verdict
from memplane.projections.milvus import MilvusProjection
from memplane.projections.milvus_row import digest
from tests.projections.support import Letters, rows, task, truth, without


def verdicts(outcomes: object) -> list[Verdict]:
    return [outcome.verdict for outcome in outcomes]  # type: ignore[attr-defined]


async def test_a_live_memory_becomes_a_row_with_all_its_fields(
    milvus: MilvusProjection, provider: Letters, backend_id: UUID
) -> None:
    full = truth(
        7,
        3,
        importance=0.25,
        category="preference",
        tags=["a", "日本"],
        slot_hint="profile",
        expires_at=datetime(2100, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
        metadata={"n": 1, "f": 1.5, "deep": {"list": [1, "two", None, True]}, "text": "é", "big": 2**63},
    )
    assert verdicts(await milvus.project([task(full)], timeout=30)) == [Verdict.APPLIED]
    row = (await rows(milvus))[7]
    assert without(row, "vector", "projection_hash") == {
        "memory_id": 7,
        "backend": str(backend_id),
        "tenant": "acme",
        "user_id": "ann",
        "version": 3,
        "content_hash": full.content_hash,
        "importance": 0.25,
        "category": "preference",
        "tags": {"values": ["a", "日本"]},
        "slot_hint": "profile",
        "expires_at": 4102542245678901,
        "metadata": full.metadata,
    }
    assert row["vector"] == pytest.approx(provider.vector(full.text or ""), abs=1e-6)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"metadata": {"huge": 10**30, "tiny": -(10**400), "zero": -0.0, "exp": 1e16}},
        {"tags": [], "category": "", "importance": 0.0},
        {"metadata": {"": {"a.b": '"quoted" \\ \n'}}, "category": 'it\'s "so"'},
    ],
)
async def test_the_digest_can_be_recomputed_from_the_row(milvus: MilvusProjection, fields: dict[str, object]) -> None:
    await milvus.project([task(truth(1, **fields))], timeout=30)
    row = (await rows(milvus))[1]
    assert digest(row, (await milvus.generation()).space) == row["projection_hash"]


async def test_the_same_event_twice_changes_nothing(milvus: MilvusProjection) -> None:
    batch = [task(truth(1)), task(truth(2))]
    assert verdicts(await milvus.project(batch, timeout=30)) == [Verdict.APPLIED, Verdict.APPLIED]
    before = await rows(milvus)
    assert verdicts(await milvus.project(batch, timeout=30)) == [Verdict.UNCHANGED, Verdict.UNCHANGED]
    assert await rows(milvus) == before


async def test_an_old_version_neither_overwrites_nor_deletes_a_newer_one(milvus: MilvusProjection) -> None:
    await milvus.project([task(truth(1, 2)), task(truth(2, 2))], timeout=30)
    before = await rows(milvus)
    late = [task(truth(1, 1)), task(truth(2, 1, live=False))]
    assert verdicts(await milvus.project(late, timeout=30)) == [Verdict.AHEAD, Verdict.AHEAD]
    assert await rows(milvus) == before


async def test_a_repair_overwrites_and_deletes_what_is_ahead_of_the_truth(milvus: MilvusProjection) -> None:
    await milvus.project([task(truth(1, 9)), task(truth(2, 9))], timeout=30)
    repairs = [task(truth(1, 1), repair=True), task(truth(2, 0, live=False), repair=True)]
    assert verdicts(await milvus.project(repairs, timeout=30)) == [Verdict.AHEAD, Verdict.AHEAD]
    assert {row["memory_id"]: row["version"] for row in (await rows(milvus)).values()} == {1: 1}


async def test_the_same_version_with_another_hash_is_a_conflict_that_the_truth_wins(milvus: MilvusProjection) -> None:
    await milvus.project([task(truth(1, 1, category="old"))], timeout=30)
    assert verdicts(await milvus.project([task(truth(1, 1, category="new"))], timeout=30)) == [Verdict.CONFLICT]
    assert (await rows(milvus))[1]["category"] == "new"


async def test_a_repair_restores_an_edit_that_left_version_and_hash_alone(milvus: MilvusProjection) -> None:
    state = truth(1, category="true")
    await milvus.project([task(state)], timeout=30)
    edited = (await rows(milvus))[1] | {"category": "edited"}
    await milvus.milvus.call("upsert", (await milvus.generation()).collection, [edited])
    await milvus.project([task(state, repair=True)], timeout=30)
    assert (await rows(milvus))[1]["category"] == "true"


async def test_a_dead_memory_is_deleted_and_deleting_it_again_is_fine(milvus: MilvusProjection) -> None:
    await milvus.project([task(truth(1)), task(truth(2))], timeout=30)
    dead = [task(truth(1, 2, live=False)), task(truth(3, 5, live=False))]
    assert verdicts(await milvus.project(dead, timeout=30)) == [Verdict.APPLIED, Verdict.UNCHANGED]
    assert set(await rows(milvus)) == {2}
    assert verdicts(await milvus.project(dead, timeout=30)) == [Verdict.UNCHANGED, Verdict.UNCHANGED]


async def test_a_purged_memory_is_deleted_up_to_the_version_of_its_event(milvus: MilvusProjection) -> None:
    await milvus.project([task(truth(1, 4))], timeout=30)
    gone = truth(1, 0, live=False)
    assert verdicts(await milvus.project([task(gone, version=3)], timeout=30)) == [Verdict.AHEAD]
    assert verdicts(await milvus.project([task(gone, version=5)], timeout=30)) == [Verdict.APPLIED]
    assert await rows(milvus) == {}


async def test_settled_tells_whether_exactly_the_truth_is_held(milvus: MilvusProjection) -> None:
    await milvus.project([task(truth(1)), task(truth(2)), task(truth(3))], timeout=30)
    asked = [task(truth(1)), task(truth(2, 2)), task(truth(3, 2, live=False)), task(truth(4, 2, live=False))]
    assert list(await milvus.settled(asked, timeout=30)) == [True, False, False, True]


async def test_texts_are_embedded_once(milvus: MilvusProjection, provider: Letters) -> None:
    await milvus.project([task(truth(1, text="same")), task(truth(2, text="same"))], timeout=30)
    await milvus.project([task(truth(1, 2, text="same", category="changed"))], timeout=30)
    assert provider.embedded == ["same"]


async def test_what_milvus_cannot_hold_is_the_fault_of_one_task(milvus: MilvusProjection) -> None:
    fine, bad = truth(1), truth(2, category="é" * 40_000)
    with pytest.raises(TaskFailed) as failed:
        await milvus.project([task(fine), task(bad)], timeout=30)
    assert (failed.value.memory_id, "category" in failed.value.reason) == (2, True)


async def test_a_large_batch_is_cut_into_calls(milvus: MilvusProjection) -> None:
    filler = "x" * 60_000
    batch = [task(truth(number, metadata={"filler": filler})) for number in range(1, 601)]
    assert set(verdicts(await milvus.project(batch, timeout=120))) == {Verdict.APPLIED}
    assert await milvus.settled(batch, timeout=60) == [True] * 600


async def test_an_embedding_provider_that_is_away_is_waited_for(milvus: MilvusProjection, provider: Letters) -> None:
    await milvus.start()
    provider.failure = ConnectionRefusedError()
    with pytest.raises(TargetUnavailable, match="embedding"):
        await milvus.project([task(truth(1))], timeout=30)
    assert not await milvus.healthy()
    provider.failure = None
    assert await milvus.healthy()
    assert verdicts(await milvus.project([task(truth(1))], timeout=30)) == [Verdict.APPLIED]


async def test_a_dropped_collection_is_made_anew(milvus: MilvusProjection) -> None:
    await milvus.project([task(truth(1))], timeout=30)
    await milvus.milvus.call("drop_collection", (await milvus.generation()).collection)
    assert verdicts(await milvus.project([task(truth(2))], timeout=60)) == [Verdict.APPLIED]
    assert set(await rows(milvus)) == {2}


async def test_a_changed_text_gets_its_own_vector(milvus: MilvusProjection, provider: Letters) -> None:
    first = truth(1, text="one")
    await milvus.project([task(first)], timeout=30)
    second = replace(truth(1, 2, text="two"))
    await milvus.project([task(second)], timeout=30)
    assert (await rows(milvus))[1]["vector"] == pytest.approx(provider.vector("two"), abs=1e-6)
