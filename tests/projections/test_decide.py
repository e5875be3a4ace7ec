"""The version rules of seed `002` section 9, as a table and as properties."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplane.outbox.events import Verdict
from memplane.projections.decide import Decision, Held, decide_delete, decide_upsert

APPLIED, UNCHANGED, CONFLICT, AHEAD = Verdict.APPLIED, Verdict.UNCHANGED, Verdict.CONFLICT, Verdict.AHEAD


@pytest.mark.parametrize(
    ("held", "repair", "decision"),
    [
        (None, False, Decision(True, APPLIED)),
        (None, True, Decision(True, APPLIED)),
        (Held(None, ""), False, Decision(True, APPLIED)),
        (Held(4, "a"), False, Decision(True, APPLIED)),
        (Held(5, "a"), False, Decision(False, UNCHANGED)),
        (Held(5, "a"), True, Decision(True, APPLIED)),
        (Held(5, "b"), False, Decision(True, CONFLICT)),
        (Held(5, "b"), True, Decision(True, CONFLICT)),
        (Held(6, "a"), False, Decision(False, AHEAD)),
        (Held(6, "a"), True, Decision(True, AHEAD)),
    ],
)
def test_upsert_of_version_5_with_hash_a(held: Held | None, repair: bool, decision: Decision) -> None:
    assert decide_upsert(held, version=5, projection_hash="a", repair=repair) == decision


@pytest.mark.parametrize(
    ("held", "repair", "decision"),
    [
        (None, False, Decision(True, UNCHANGED)),
        (None, True, Decision(True, UNCHANGED)),
        (Held(None, ""), False, Decision(True, APPLIED)),
        (Held(4, "a"), False, Decision(True, APPLIED)),
        (Held(5, "a"), False, Decision(True, APPLIED)),
        (Held(6, "a"), False, Decision(False, AHEAD)),
        (Held(6, "a"), True, Decision(True, AHEAD)),
    ],
)
def test_delete_of_version_5(held: Held | None, repair: bool, decision: Decision) -> None:
    assert decide_delete(held, version=5, repair=repair) == decision


@given(st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1))
def test_without_repairs_a_target_never_goes_back(arrivals: list[tuple[int, bool]]) -> None:
    """Whatever stale truths arrive late, a version that was written is never followed by an older one."""
    held: Held | None = None
    for version, dead in arrivals:
        before = held.version if held is not None else None
        if dead:
            decision = decide_delete(held, version=version, repair=False)
            held = None if decision.write else held
            assert held is not None or before is None or before <= version
        else:
            decision = decide_upsert(held, version=version, projection_hash=f"{version}", repair=False)
            held = Held(version, f"{version}") if decision.write else held
            assert held is not None
            assert held.version is not None
            assert before is None or held.version >= before
