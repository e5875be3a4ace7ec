"""`plan_edges` applied to what a source holds leaves exactly its live set."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from memplane.outbox.events import Verdict
from memplane.projections.neo4j_edges import EdgePlan, HeldEdge, plan_edges
from tests.projections.support import edge

BACKEND = "b"


def held_of(source: int, target: int, kind: str, version: int, reference: str) -> HeldEdge:
    made = edge(source, target, kind, version)
    return HeldEdge(reference, target, kind, version, made.relation_hash, BACKEND)


def plan(held: list[HeldEdge], wanted: list[tuple[int, str, int]], version: int, **options: object) -> EdgePlan:
    edges = [edge(1, target, kind, at) for target, kind, at in wanted]
    return plan_edges(
        held,
        edges,
        backend=BACKEND,
        version=version,
        held_version=options.get("held_version", version),  # type: ignore[arg-type]
        repair=bool(options.get("repair", False)),
    )


def test_the_same_set_is_left_alone() -> None:
    assert plan([held_of(1, 2, "likes", 3, "x")], [(2, "likes", 3)], 3) == EdgePlan(Verdict.UNCHANGED)


def test_a_set_whose_version_was_not_noted_is_noted() -> None:
    assert plan([held_of(1, 2, "likes", 3, "x")], [(2, "likes", 3)], 4, held_version=3).verdict is Verdict.APPLIED


def test_a_stale_edge_is_overwritten_and_a_dead_one_deleted() -> None:
    made = plan([held_of(1, 2, "likes", 3, "x"), held_of(1, 4, "likes", 3, "y")], [(2, "likes", 5)], 5, held_version=3)
    assert made == EdgePlan(Verdict.APPLIED, ["x", "y"], [edge(1, 2, "likes", 5)])


def test_an_edge_that_is_there_twice_is_kept_once() -> None:
    held = [held_of(1, 2, "likes", 3, "x"), held_of(1, 2, "likes", 3, "y")]
    assert plan(held, [(2, "likes", 3)], 3).delete == ["y"]


def test_a_hash_edited_at_the_same_version_is_a_conflict() -> None:
    spoiled = HeldEdge("x", 2, "likes", 3, "spoiled", BACKEND)
    assert plan([spoiled], [(2, "likes", 3)], 3) == EdgePlan(Verdict.CONFLICT, ["x"], [edge(1, 2, "likes", 3)])


def test_a_newer_set_is_left_alone_but_by_a_repair() -> None:
    held = [held_of(1, 2, "likes", 9, "x")]
    assert plan(held, [], 4, held_version=9) == EdgePlan(Verdict.AHEAD)
    assert plan(held, [], 4, held_version=9, repair=True) == EdgePlan(Verdict.AHEAD, ["x"], [])


def test_what_a_hand_spoiled_goes() -> None:
    held = [HeldEdge("x", None, "likes", None, None), HeldEdge("y", 2, None, None, None)]
    assert plan(held, [], 1).delete == ["x", "y"]


edges = st.tuples(st.integers(2, 4), st.sampled_from(["likes", "knows"]), st.integers(1, 5))


@given(st.lists(edges), st.lists(edges, unique_by=lambda made: made[:2]))
def test_the_plan_leaves_exactly_the_live_set(
    before: list[tuple[int, str, int]], after: list[tuple[int, str, int]]
) -> None:
    held = [held_of(1, target, kind, at, str(number)) for number, (target, kind, at) in enumerate(before)]
    made = plan(held, after, 5)
    kept = {(one.target_id, one.type, one.version) for one in held if one.reference not in set(made.delete)}
    put = {(one.target_id, one.type, one.version) for one in made.put}
    assert kept | put == set(after)
    assert not kept & put
    assert len([one for one in held if one.reference not in set(made.delete)]) + len(made.put) == len(after)
