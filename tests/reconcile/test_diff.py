"""The comparison of truth and projection, without I/O."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplane.projections.neo4j_edges import HeldEdge
from memplane.reconcile.diff import Drift, Expected, HeldObject, diff_edges, diff_objects
from tests.projections.support import edge

BACKEND = "b"


def held(memory_id: int, version: int | None = 5, stored: str = "h", computed: str = "h") -> HeldObject:
    return HeldObject(memory_id, version, stored, computed)


@pytest.mark.parametrize(
    ("want", "have", "drift"),
    [
        (Expected(1, 5, "h"), held(1), None),
        (Expected(1, 5, "h"), None, Drift.MISSING),
        (Expected(1, 5, "h"), held(1, None, "", "x"), Drift.MISSING),
        (Expected(1, 5, "h"), held(1, 4, "g", "g"), Drift.STALE),
        (Expected(1, 5, "h"), held(1, 6), Drift.AHEAD),
        (Expected(1, 5, "h"), held(1, 5, "g", "g"), Drift.HASH),
        (Expected(1, 5, "h"), held(1, 5, "h", "edited"), Drift.HASH),
        (Expected(1, 5, "h"), held(1, 5, "edited", "h"), Drift.HASH),
        (None, held(1), Drift.ORPHAN),
        (None, HeldObject(1, None, "", "x", needed=True), None),
        (None, HeldObject(1, None, "", "x", needed=False), Drift.ORPHAN),
    ],
)
def test_one_memory(want: Expected | None, have: HeldObject | None, drift: Drift | None) -> None:
    found = list(diff_objects([want] if want else [], [have] if have else []))
    assert [one.drift for one in found] == ([drift] if drift else [])


versions = st.dictionaries(st.integers(1, 30), st.integers(1, 3))


@given(versions, versions)
def test_the_merge_join_finds_what_a_dictionary_finds(truth: dict[int, int], target: dict[int, int]) -> None:
    found = diff_objects(
        [Expected(number, version, f"{version}") for number, version in sorted(truth.items())],
        [held(number, version, f"{version}", f"{version}") for number, version in sorted(target.items())],
    )
    expected = {}
    for number in {*truth, *target}:
        if number not in target:
            expected[number] = Drift.MISSING
        elif number not in truth:
            expected[number] = Drift.ORPHAN
        elif target[number] != truth[number]:
            expected[number] = Drift.STALE if target[number] < truth[number] else Drift.AHEAD
    assert {one.memory_id: one.drift for one in found} == expected


def held_edge(target: int | None, kind: str | None, version: int | None, of: tuple[int, str] | None = None) -> HeldEdge:
    """An edge of memory 1 in the graph; its relation hash is that of the relation `of` (target, type)."""
    relation = of or (target or 0, kind or "")
    return HeldEdge("r", target, kind, version, edge(1, relation[0], relation[1], 1).relation_hash, BACKEND)


LIKES_2 = edge(1, 2, "likes", 5)


@pytest.mark.parametrize(
    ("have", "drifts"),
    [
        ([held_edge(2, "likes", 5)], []),
        ([], [Drift.EDGE_MISSING]),
        ([held_edge(2, "likes", 4)], [Drift.EDGE_STALE]),
        ([held_edge(2, "likes", None)], [Drift.EDGE_STALE]),
        ([held_edge(2, "likes", 6)], [Drift.EDGE_AHEAD]),
        ([held_edge(2, "likes", 5, of=(9, "spoiled"))], [Drift.EDGE_HASH]),
        ([held_edge(3, "likes", 5, of=(2, "likes"))], [Drift.EDGE_ENDPOINT]),
        ([held_edge(2, "hates", 5, of=(2, "likes"))], [Drift.EDGE_TYPE]),
        ([held_edge(2, "likes", 5), held_edge(2, "likes", 5)], [Drift.EDGE_ORPHAN]),
        ([held_edge(2, "likes", 5), held_edge(3, "likes", 5)], [Drift.EDGE_ORPHAN]),
        ([held_edge(2, "likes", 5), held_edge(7, "likes", 5)], [Drift.EDGE_DANGLING]),
        ([held_edge(2, "likes", 5), held_edge(None, "likes", 5)], [Drift.EDGE_DANGLING]),
    ],
)
def test_edges_of_one_source(have: list[HeldEdge], drifts: list[Drift]) -> None:
    found = diff_edges({1: [LIKES_2]}, {1: have}, frozenset({7}), BACKEND)
    assert [one.drift for one in found] == drifts


def test_edges_of_a_dead_source_are_orphans() -> None:
    assert [one.drift for one in diff_edges({}, {1: [held_edge(2, "likes", 5)]}, frozenset(), BACKEND)] == [
        Drift.EDGE_ORPHAN
    ]
