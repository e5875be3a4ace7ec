"""Decisions of a run without I/O: where it may begin, how fast it goes, what is hopeless, what belongs together."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplane.reconcile.confirm import as_good_as
from memplane.reconcile.diff import Difference, Drift, Expected, HeldObject, diff_objects
from memplane.reconcile.history import RepairHistory
from memplane.reconcile.pace import pause_seconds
from memplane.reconcile.scan import batches, within
from memplane.reconcile.watermark import Base, EarlierRun, decide_base


@pytest.mark.parametrize(
    ("earlier", "since", "reason"),
    [
        (None, None, "no complete run"),
        (EarlierRun(100, "server/1", 200), 100, None),
        (EarlierRun(200, "server/1", 200), 200, None),
        (EarlierRun(100, "other/1", 200), None, "restored, moved or promoted"),
        (EarlierRun(100, "server/2", 200), None, "restored, moved or promoted"),
        (EarlierRun(100, None, 200), None, "restored, moved or promoted"),
        (EarlierRun(201, "server/1", 200), None, "older than the last run"),
    ],
)
def test_an_incremental_run_needs_a_watermark_of_the_same_history(
    earlier: EarlierRun | None, since: int | None, reason: str | None
) -> None:
    base = decide_base(earlier, lineage="server/1")
    assert base.since == since
    assert (reason is None and base == Base(since)) or (reason is not None and reason in str(base.reason))


@pytest.mark.parametrize(
    ("compared", "elapsed", "rate", "pause"),
    [(1000, 1.0, 0, 0.0), (1000, 1.0, 500, 1.0), (1000, 2.0, 500, 0.0), (1000, 9.0, 500, 0.0), (0, 0.0, 500, 0.0)],
)
def test_a_rate_is_kept_on_average(compared: int, elapsed: float, rate: float, pause: float) -> None:
    assert pause_seconds(compared, elapsed, rate) == pytest.approx(pause)


@pytest.mark.parametrize(
    ("made", "dead", "hopeless"), [(0, False, False), (2, False, False), (3, False, True), (0, True, True)]
)
def test_repairs_that_do_not_help(made: int, dead: bool, hopeless: bool) -> None:
    assert (RepairHistory(made, dead).ineffective is not None) == hopeless


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


@pytest.mark.parametrize(
    ("held", "stored", "good"),
    [
        (floats(3, 4), floats(3, 4), True),
        (floats(0.6, 0.8), floats(3, 4), True),
        (floats(4, 3), floats(3, 4), False),
        (floats(-3, -4), floats(3, 4), False),
        (floats(3, 4.001), floats(3, 4), False),
        (floats(0, 0), floats(3, 4), False),
        (floats(3, 4, 0), floats(3, 4), False),
        (floats(float("nan"), 4), floats(3, 4), False),
    ],
)
def test_a_vector_is_as_good_as_another_of_its_direction(held: bytes, stored: bytes, good: bool) -> None:
    assert as_good_as(held, stored) is good


@given(st.lists(st.integers(1, 20), max_size=60).map(sorted), st.integers(1, 9))
def test_candidates_of_one_memory_stay_together(ids: list[int], size: int) -> None:
    candidates = [Difference(memory_id, Drift.HASH) for memory_id in ids]
    found = batches(candidates, size)
    assert [one for batch in found for one in batch] == candidates
    groups = [{one.memory_id for one in batch} for batch in found]
    assert sum(map(len, groups)) == len(set(ids))
    assert all(len(batch) >= size for batch in found[:-1])


@given(st.sets(st.integers(1, 50)), st.sets(st.integers(1, 50)), st.integers(0, 50), st.integers(0, 50))
def test_what_could_not_be_checked_is_counted_once(ids: set[int], odd: set[int], first: int, second: int) -> None:
    ordered, unchecked = sorted(ids), sorted(odd & ids)
    start, end = sorted((min(first, len(ordered)), min(second, len(ordered))))
    assert within(unchecked, ordered, start, end) == len(odd & set(ordered[start:end]))
    assert within(unchecked, ordered, start, None) == len(odd & set(ordered[start:]))


VECTOR = floats(1, 2)


@pytest.mark.parametrize(
    ("want", "have", "drift"),
    [
        (Expected(1, 5, "h", VECTOR), HeldObject(1, 5, "h", "h", vector=VECTOR), None),
        (Expected(1, 5, "h", VECTOR), HeldObject(1, 5, "h", "h", vector=floats(2, 1)), Drift.HASH),
        (Expected(1, 5, "h", None), HeldObject(1, 5, "h", "h", vector=floats(2, 1)), None),
        (Expected(1, 5, "h", VECTOR), HeldObject(1, 5, "h", "h", foreign="b"), Drift.FOREIGN),
        (None, HeldObject(1, 5, "h", "h", foreign="b"), Drift.FOREIGN),
    ],
)
def test_vectors_and_owners(want: Expected | None, have: HeldObject, drift: Drift | None) -> None:
    found = list(diff_objects([want] if want else [], [have]))
    assert [one.drift for one in found] == ([drift] if drift else [])
