"""The plan of a snapshot: what is merged into what, what the survivors hold, what decays. Without I/O."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplane.consolidation import KeepPolicy, Memory, Merged, Plan, Snapshot, plan
from memplane.consolidation.memory import MAX_REFERRERS
from memplane.consolidation.policy import PolicyFailed
from memplane.settings import ConsolidationSettings, Rule
from tests.consolidation.world import KEEP, NOW, SETTINGS, memory, snapshot

ALL: frozenset[Rule] = frozenset({"exact", "near", "decay", "expiry", "policy"})


def planned(made: Snapshot, *rules: Rule, settings: ConsolidationSettings = SETTINGS, policy: Any = KEEP) -> Plan:
    return plan(made, settings, frozenset(rules), policy)


def superseded(made: Plan) -> dict[int, int | None]:
    return {one.memory_id: one.superseded_by for step in made.steps for one in step.deletes}


def written(made: Plan) -> dict[int, Any]:
    return {one.memory_id: one.metadata for step in made.steps for one in step.updates if one.changes}


def turned(degrees: float) -> list[float]:
    return [math.cos(math.radians(degrees)), math.sin(math.radians(degrees))]


@pytest.mark.parametrize(
    ("memories", "expected"),
    [
        ([memory(1, "a"), memory(2, "b")], {}),
        ([memory(1, "a"), memory(2, "a")], {2: 1}),
        ([memory(1, "a"), memory(2, "a", is_document=True)], {}),
        ([memory(1, "a"), memory(2, "a", key="k"), memory(3, "a")], {1: 2, 3: 2}),
        ([memory(1, "a", key="k"), memory(2, "a", key="l"), memory(3, "a")], {3: 1}),
        ([memory(1, "a", expires_at=NOW), memory(2, "a")], {}),
        ([memory(1, "a", category="x"), memory(2, "a", category="y")], {2: 1}),
    ],
)
def test_exact_duplicates(memories: list[Memory], expected: dict[int, int]) -> None:
    assert superseded(planned(snapshot(memories), "exact")) == expected


def test_near_duplicates_are_near_to_their_survivor_itself() -> None:
    angles = {1: 0, 2: 20, 3: 40, 4: 90}
    made = snapshot([memory(number) for number in angles], {n: turned(angle) for n, angle in angles.items()})
    # 1 and 3 are 40 degrees apart, beyond the threshold of about 26, though 2 is near to both. The latest is preferred.
    assert superseded(planned(made, "near")) == {2: 3}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ([{}, {}], {1: 2}),
        ([{"importance": 0.5}, {}], {2: 1}),
        ([{"key": "k"}, {"importance": 1.0}], {2: 1}),
        ([{"key": "k"}, {"key": "l"}], {}),
        ([{"updated_at": NOW}, {}], {2: 1}),
        ([{"category": "x"}, {}], {}),
        ([{"slot_hint": "x"}, {"slot_hint": "y"}], {}),
    ],
)
def test_which_near_duplicate_survives(fields: list[dict[str, Any]], expected: dict[int, int]) -> None:
    memories = [memory(number, **some) for number, some in enumerate(fields, 1)]
    made = snapshot(memories, {1: turned(0), 2: turned(1)})
    assert superseded(planned(made, "near")) == expected


def test_duplicates_of_a_near_duplicate_go_with_it() -> None:
    made = snapshot([memory(1, "a"), memory(2, "a"), memory(3, "b", importance=0.9)], {1: turned(0), 3: turned(1)})
    result = planned(made, "exact", "near")
    assert superseded(result) == {1: 3, 2: 3}
    assert len(result.steps) == 1


def test_without_a_stored_embedding_nothing_is_near() -> None:
    assert planned(snapshot([memory(1), memory(2)], {1: turned(0)}), "near").steps == ()
    assert planned(snapshot([memory(1), memory(2)], {1: [0, 0], 2: [0, 0]}), "near").steps == ()


def test_what_the_survivor_holds() -> None:
    soon, late = NOW + timedelta(days=1), NOW + timedelta(days=9)
    made = snapshot(
        [
            memory(1, "a", metadata={"own": 1, "both": "mine", "tags": ["x"]}, importance=0.2, expires_at=soon),
            memory(2, "a", metadata={"both": "other", "more": [1]}, expires_at=late, updated_at=NOW),
            memory(3, "a", metadata={"more": [2], "tags": ["y", "x"]}, importance=0.9, expires_at=soon),
        ]
    )
    assert written(planned(made, "exact")) == {
        1: {
            "own": 1,
            "both": "mine",
            "more": [1],
            "tags": ["x", "y"],
            "importance": 0.9,
            "expires_at": late.isoformat(),
        }
    }


def test_what_never_expires_survives_as_such() -> None:
    made = snapshot([memory(1, "a", expires_at=NOW + timedelta(days=1)), memory(2, "a")])
    assert written(planned(made, "exact")) == {1: {}}


def test_a_survivor_that_has_everything_is_checked_and_not_written() -> None:
    result = planned(snapshot([memory(1, "a"), memory(2, "a")]), "exact")
    (step,) = result.steps
    assert [(one.memory_id, one.expected_version, one.changes) for one in step.updates] == [(1, 1, False)]
    assert [(one.memory_id, one.expected_version) for one in step.deletes] == [(2, 2)]


def relations(metadata: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(one["type"], one["target"]) for one in metadata["relations"]]


def test_relations_follow_the_merge() -> None:
    made = snapshot(
        [
            memory(1, "a", relations=[("likes", 9), ("near", 2)]),
            memory(2, "a", relations=[("likes", 9), ("knows", 8), ("self", 1)]),
            memory(5, relations=[("of", 2), ("of", 1), ("other", 2)]),
            memory(8),
            memory(9, relations=[("back", 2)]),
        ]
    )
    result = planned(made, "exact")
    assert superseded(result) == {2: 1}
    assert {number: relations(one) for number, one in written(result).items()} == {
        1: [("likes", "9"), ("knows", "8")],
        5: [("of", "1"), ("other", "1")],
        9: [("back", "1")],
    }


def test_merges_that_share_a_memory_are_one_step() -> None:
    made = snapshot(
        [
            memory(1, "a"),
            memory(2, "a", relations=[("to", 4)]),
            memory(3, "b"),
            memory(4, "b"),
            memory(5, "c"),
            memory(6, "c"),
            memory(7, relations=[("x", 2), ("y", 4)]),
        ]
    )
    result = planned(made, "exact")
    assert [[one.memory_id for one in (*step.updates, *step.deletes)] for step in result.steps] == [
        [1, 3, 7, 2, 4],
        [5, 6],
    ]
    assert {number: relations(one) for number, one in written(result).items()} == {
        1: [("to", "3")],
        7: [("x", "1"), ("y", "3")],
    }


def test_what_too_many_point_to_is_not_merged_away() -> None:
    made = snapshot([memory(1, "a"), memory(2, "a")])
    result = planned(replace(made, incoming={2: None}), "exact")
    assert result.steps == ()
    assert [one.memory_ids for one in result.skipped] == [(1, 2)]


def test_an_expired_memory_that_points_to_one_of_them_is_waited_for() -> None:
    made = snapshot([memory(1, "a"), memory(2, "a"), memory(3, expires_at=NOW, relations=[("x", 2)])])
    result = planned(made, "exact", "expiry")
    assert superseded(result) == {3: None}
    assert len(result.skipped) == 1


def test_many_duplicates_are_merged_a_part_at_a_time() -> None:
    settings = SETTINGS.model_copy(update={"batch_size": 10})
    made = snapshot([memory(number, "same") for number in range(1, 41)])
    result = planned(made, "exact", settings=settings)
    assert superseded(result) == dict.fromkeys(range(2, 11), 1)
    assert result.deferred


def test_a_step_stays_within_its_bound_whatever_points_to_it() -> None:
    settings = SETTINGS.model_copy(update={"batch_size": 2})
    crowd = [memory(number, relations=[("x", 2)]) for number in range(100, 100 + MAX_REFERRERS)]
    result = planned(snapshot([memory(1, "a"), memory(2, "a"), *crowd]), "exact", settings=settings)
    assert [step.size for step in result.steps] == [MAX_REFERRERS + 2]


@pytest.mark.parametrize(
    ("age", "importance", "expected"),
    [
        (1, 0.8, 0.4),
        (2, 0.8, 0.2),
        (0, 0.8, None),
        (1, None, None),
        (0.001, 0.8, None),
        (1, 0.0, None),
        (-1, 0.8, None),
    ],
)
def test_decay(age: float, importance: float | None, expected: float | None) -> None:
    one = memory(1, importance=importance, updated_at=NOW - timedelta(days=age), metadata={"other": True})
    result = written(planned(snapshot([one]), "decay"))
    assert result == ({} if expected is None else {1: {"other": True, "importance": pytest.approx(expected)}})


def test_decay_drops_relations_whose_edge_is_gone() -> None:
    one = memory(1, importance=0.8, relations=[("x", 2), ("y", 3)])
    made = snapshot([replace(one, relations=frozenset({("y", 3)}))])
    assert relations(written(planned(made, "decay"))[1]) == [("y", "3")]


def test_nothing_happens_without_a_rule() -> None:
    assert planned(snapshot([memory(1, "a"), memory(2, "a", importance=1.0), memory(3, expires_at=NOW)])).steps == ()


class Pairs(KeepPolicy):
    """Merges neighbours, and writes a new content."""

    needs_content = True

    def groups(self, memories: Sequence[Memory]) -> Iterable[Sequence[int]]:
        numbers = [one.id for one in memories]
        return [*zip(numbers[::2], numbers[1::2], strict=False), (1, 999), (5, 5)]

    def merge(self, survivor: Memory, absorbed: Sequence[Memory], contents: Mapping[int, Any]) -> Merged | None:
        return Merged(survivor.metadata, " ".join(contents[one.id] for one in (survivor, *absorbed)))


def test_a_policy_of_ones_own() -> None:
    memories = [memory(number, key={2: "k", 3: "l"}.get(number)) for number in range(1, 7)]
    made = replace(snapshot(memories), contents={number: f"text {number}" for number in range(1, 7)})
    result = planned(made, "policy", policy=Pairs())
    # 1 must not swallow the key of 2; 3 keeps its own.
    assert superseded(result) == {4: 3, 6: 5}
    contents = {one.memory_id: one.content for step in result.steps for one in step.updates}
    assert contents == {3: "text 3 text 4", 5: "text 5 text 6"}


class Faulty(KeepPolicy):
    def merge(self, survivor: Memory, absorbed: Sequence[Memory], contents: Mapping[int, Any]) -> Merged | None:
        if survivor.id == 1:
            raise ValueError("secret")
        return None if survivor.id == 3 else Merged({"importance": 7})


def test_a_policy_that_fails_or_answers_nonsense_merges_nothing() -> None:
    made = snapshot([memory(number, "abc"[number // 2 - 1]) for number in range(2, 8)])
    made = replace(made, memories={one.id - 1: replace(one, id=one.id - 1) for one in made.memories.values()})
    result = planned(made, "exact", policy=Faulty())
    assert result.steps == ()
    reasons = [one.reason for one in result.skipped]
    assert len(reasons) == 3
    assert "secret" not in " ".join(reasons)


class Broken(KeepPolicy):
    def groups(self, memories: Sequence[Memory]) -> Iterable[Sequence[int]]:
        raise ValueError("secret")


def test_a_policy_that_cannot_group_ends_the_plan() -> None:
    with pytest.raises(PolicyFailed, match="ValueError") as failure:
        planned(snapshot([memory(1)]), "policy", policy=Broken())
    assert "secret" not in str(failure.value)


# Properties ----------------------------------------------------------------------------------------------------------


def chosen_by(seed: int) -> Snapshot:
    """Up to twelve memories of few texts, keys, angles and relations, so that everything meets everything."""
    chance = random.Random(seed)
    count = chance.randint(0, 12)
    memories = []
    for number in range(1, count + 1):
        targets = {chance.randint(1, count) for _ in range(chance.randint(0, 3))} - {number}
        memories.append(
            memory(
                number,
                chance.choice("abcd"),
                key=chance.choice([None, None, f"key {number}"]),
                category=chance.choice([None, "x"]),
                importance=chance.choice([None, 0.3, 0.9]),
                expires_at=chance.choice([None, None, None, NOW, NOW + timedelta(days=2)]),
                relations=[(chance.choice("pq"), target) for target in targets],
                updated_at=NOW - timedelta(hours=chance.randint(0, 50)),
            )
        )
    vectors = {one.id: turned(chance.randint(0, 8) * 12) for one in memories if chance.random() < 0.6}
    return snapshot(memories, vectors)


snapshots = st.integers(0, 2**32).map(chosen_by)
rules = st.sets(st.sampled_from(sorted(ALL)))
bounds = st.sampled_from([2, 5, 50])


@given(snapshots, rules, bounds)
def test_every_plan_keeps_the_promises(made: Snapshot, chosen: set[Rule], bound: int) -> None:
    settings = SETTINGS.model_copy(update={"batch_size": bound})
    result = planned(made, *chosen, settings=settings)
    assert result == planned(made, *chosen, settings=settings), "it is a function of its input"
    gone = superseded(result)
    seen: set[int] = set()
    for step in result.steps:
        ids = [one.memory_id for one in (*step.updates, *step.deletes)]
        assert len(ids) == len(set(ids))
        assert seen.isdisjoint(ids), "steps share no memory"
        seen.update(ids)
        assert step.size <= bound + MAX_REFERRERS
        for one in (*step.updates, *step.deletes):
            assert one.expected_version == made.memories[one.memory_id].version
        for one in step.deletes:
            survivor = one.superseded_by
            assert survivor is None or (survivor in ids and survivor not in gone), "a survivor stays, in the same step"
            assert survivor is None or made.memories[one.memory_id].key is None, "no key is lost by a merge"
            assert made.expired(made.memories[one.memory_id]) == (survivor is None)
    documents = written(result)
    for number, one in made.memories.items():
        if number in gone:
            continue
        named = (
            {(one_type, int(target)) for one_type, target in relations(documents[number])}
            if (number in documents and "relations" in documents[number])
            else one.relations
        )
        moved = {
            (kind, gone.get(target) or target) for kind, target in one.relations if gone.get(target, 1) is not None
        }
        alive = {(kind, target) for kind, target in moved if target != number}
        assert alive <= named, "what it pointed to, it or its survivor still is"
        merged = {target for _, target in named if gone.get(target) is not None}
        assert not merged, "nothing points to what was merged away"


@given(snapshots)
def test_a_plan_that_was_carried_out_leaves_no_duplicate(made: Snapshot) -> None:
    result = planned(made, "exact")
    left = [one for number, one in made.memories.items() if number not in superseded(result) and not made.expired(one)]
    waiting = {number for one in result.skipped for number in one.memory_ids}
    by_text: dict[object, list[Memory]] = {}
    for one in left:
        if one.id not in waiting:
            by_text.setdefault((one.text_hash, one.is_document), []).append(one)
    for group in by_text.values():
        assert len(group) == 1 or all(one.key is not None for one in group)
