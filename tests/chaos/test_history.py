"""The checker of the chaos run finds each breach of its rules, and nothing where there is none."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from chaos.history import check_history
from chaos.journal import Kind, Operation, Outcome
from chaos.lives import Row
from hypothesis import given, settings
from hypothesis import strategies as st

OK, REFUSED, UNKNOWN = Outcome.OK, Outcome.REFUSED, Outcome.UNKNOWN
_ids = itertools.count()


def call(kind: Kind, at: tuple[float, float], request: list[dict[str, Any]], **more: Any) -> Operation:
    began, ended = at
    return Operation(more.pop("id", f"op-{next(_ids)}"), kind, began, request, "ann", ended, **more)


def write(at: tuple[float, float], content: str, *, id: str = "w", memory: str = "1", **more: Any) -> Operation:
    outcome = more.pop("outcome", OK)
    result = [{"id": memory, "version": 1, "content": content}] if outcome is OK else []
    draft = {"content": content} | ({"key": more.pop("key")} if "key" in more else {})
    return call(Kind.WRITE, at, [draft], id=id, outcome=outcome, result=result, **more)


def update(at: tuple[float, float], content: str, version: int | None, **more: Any) -> Operation:
    outcome = OK if version is not None else more.pop("outcome", UNKNOWN)
    entry = {"id": "1", "content": content} | ({"expectedVersion": e} if (e := more.pop("expected", None)) else {})
    result = [] if version is None else [{"id": "1", "version": version, "content": content}]
    return call(Kind.UPDATE, at, [entry], outcome=outcome, result=result, **more)


def delete(
    at: tuple[float, float], *, outcome: Outcome = OK, expected: int | None = None, found: bool = True, **more: Any
) -> Operation:
    entry = {"id": "1"} | ({"expectedVersion": expected} if expected else {})
    return call(
        Kind.DELETE, at, [entry], outcome=outcome, result=[{"id": "1"}] if outcome is OK and found else [], **more
    )


def get(at: tuple[float, float], version: int | None, content: str = "") -> Operation:
    found = [] if version is None else [{"id": "1", "version": version, "content": content}]
    return call(Kind.GET, at, [{"id": "1"}], outcome=OK, result=found)


def row(version: int, content: str, *, live: bool = True, origin: str = "w", id: str = "1", **more: Any) -> Row:
    return Row(id, version, content, live, origin, "ann", **more)


FIRST = write((0, 1), "a")

KEPT = {
    "a write": ([FIRST], [row(1, "a")]),
    "an update": ([FIRST, update((2, 3), "b", 2)], [row(2, "b")]),
    "an open update that was stored": ([FIRST, update((2, 3), "b", None)], [row(2, "b")]),
    "an open update that was not": ([FIRST, update((2, 3), "b", None)], [row(1, "a")]),
    "an open update below a told one": ([FIRST, update((2, 3), "b", None), update((4, 5), "c", 3)], [row(3, "c")]),
    "an open update long after": ([FIRST, update((2, 3), "b", None), update((4, 5), "c", 2)], [row(3, "b")]),
    "a delete": ([FIRST, delete((2, 3))], [row(2, "a", live=False)]),
    "an open delete that was stored": ([FIRST, delete((2, 3), outcome=UNKNOWN)], [row(2, "a", live=False)]),
    "an open delete that was not": ([FIRST, delete((2, 3), outcome=UNKNOWN)], [row(1, "a")]),
    "an open update, then a delete": ([FIRST, update((2, 3), "b", None), delete((4, 5))], [row(3, "b", live=False)]),
    "an open write that was stored": ([write((0, 1), "a", outcome=UNKNOWN)], [row(1, "a")]),
    "an open write that was not": ([write((0, 1), "a", outcome=UNKNOWN)], []),
    "an open write, updated": ([write((0, 1), "a", outcome=UNKNOWN), update((2, 3), "b", 2)], [row(2, "b")]),
    "a refused write": ([write((0, 1), "a", outcome=REFUSED)], []),
    "an expected version": ([FIRST, update((2, 3), "b", 2, expected=1)], [row(2, "b")]),
    "a conflict with reason": (
        [FIRST, update((2, 3), "b", 2), update((2, 4), "c", None, outcome=REFUSED, expected=1, code="CONFLICT")],
        [row(2, "b")],
    ),
    "reads": (
        [FIRST, get((2, 3), 1, "a"), update((2, 5), "b", 2), get((4, 5), 1, "a"), get((6, 7), 2, "b")],
        [row(2, "b")],
    ),
    "a read of an open update": ([FIRST, update((2, 3), "b", None), get((4, 5), 2, "b")], [row(2, "b")]),
    "a delete of what is gone": ([FIRST, delete((2, 3)), delete((4, 5), found=False)], [row(2, "a", live=False)]),
    "a read beside a delete": (
        [FIRST, delete((2, 5)), get((3, 4), None), get((3, 6), 1, "a")],
        [row(2, "a", live=False)],
    ),
    "a read before the write was told": ([write((0, 5), "a"), get((2, 3), None)], [row(1, "a")]),
    "a key that another holds": (
        [write((0, 1), "a", key="k"), write((2, 3), "b", id="x", key="k", outcome=REFUSED, code="CONFLICT")],
        [row(1, "a", key="k")],
    ),
}  # fmt: skip

BROKEN = {
    "a told write without a row": ("lost", [FIRST], []),
    "a told update below": ("lost", [FIRST, update((2, 3), "b", 2)], [row(1, "a")]),
    "another content": ("lost", [FIRST, update((2, 3), "b", 2)], [row(2, "a")]),
    "one version twice": ("forked", [FIRST, update((2, 3), "b", 2), update((2, 3), "c", 2)], [row(2, "c")]),
    "an unexpected version": ("forked", [FIRST, update((2, 3), "b", 3, expected=1)], [row(3, "b")]),
    "an open update against its expectation": (
        "forked",
        [FIRST, update((2, 3), "b", 2), update((4, 5), "c", None, expected=1)],
        [row(3, "c")],
    ),
    "deleted twice": ("forked", [FIRST, delete((2, 3)), delete((4, 5))], [row(2, "a", live=False)]),
    "live after a delete": ("resurrected", [FIRST, delete((2, 3))], [row(2, "a")]),
    "changed after a delete": (
        "resurrected",
        [FIRST, delete((2, 3)), update((4, 5), "b", 3)],
        [row(3, "b", live=False)],
    ),
    "seen after a delete": ("resurrected", [FIRST, delete((2, 3)), get((4, 5), 1, "a")], [row(2, "a", live=False)]),
    "seen after it was missed": (
        "resurrected",
        [FIRST, delete((2, 9), outcome=UNKNOWN), get((3, 4), None), get((5, 6), 1, "a")],
        [row(1, "a")],
    ),
    "a tombstone of nobody": ("invented", [FIRST], [row(2, "a", live=False)]),
    "a version of nobody": ("invented", [FIRST], [row(2, "a")]),
    "a content of nobody": ("invented", [FIRST, update((2, 3), "b", None)], [row(2, "z")]),
    "a row of nobody": ("invented", [FIRST], [row(1, "a"), row(1, "z", id="2", origin="?")]),
    "a refused write with a row": ("invented", [write((0, 1), "a", outcome=REFUSED)], [row(1, "a")]),
    "a refused update that was stored": (
        "invented",
        [FIRST, update((2, 3), "b", None, outcome=REFUSED)],
        [row(2, "b")],
    ),
    "an open call that was stored twice": ("invented", [FIRST, update((2, 3), "b", None)], [row(3, "b")]),
    "a conflict without reason": (
        "unfounded",
        [FIRST, update((2, 3), "b", None, outcome=REFUSED, expected=1, code="CONFLICT")],
        [row(1, "a")],
    ),
    "a key that nobody holds": (
        "unfounded",
        [FIRST, write((2, 3), "b", id="x", key="k", outcome=REFUSED, code="CONFLICT")],
        [row(1, "a")],
    ),
    "a key held twice": (
        "forked",
        [write((0, 1), "a", key="k"), write((2, 3), "b", id="x", memory="2", key="k")],
        [row(1, "a", key="k"), row(1, "b", id="2", origin="x", key="k")],
    ),
    "an old read": ("stale", [FIRST, update((2, 3), "b", 2), get((4, 5), 1, "a")], [row(2, "b")]),
    "a read that goes back": (
        "stale",
        [FIRST, update((2, 9), "b", 2), get((3, 4), 2, "b"), get((5, 6), 1, "a")],
        [row(2, "b")],
    ),
    "a read of the future": ("stale", [FIRST, get((2, 3), 2, "b"), update((4, 5), "b", 2)], [row(2, "b")]),
    "a read of nothing real": ("invented", [FIRST, get((2, 3), 1, "z")], [row(1, "a")]),
    "a read that misses": ("lost", [FIRST, get((2, 3), None)], [row(1, "a")]),
    "an update that misses": (
        "lost",
        [FIRST, update((2, 3), "b", None, outcome=REFUSED, code="NOT_FOUND")],
        [row(1, "a")],
    ),
    "a delete that misses": ("lost", [FIRST, delete((2, 3), found=False)], [row(1, "a")]),
}  # fmt: skip


@pytest.mark.parametrize(("calls", "rows"), KEPT.values(), ids=KEPT)
def test_what_may_happen_is_no_breach(calls: list[Operation], rows: list[Row]) -> None:
    assert check_history(calls, rows) == []


@pytest.mark.parametrize(("rule", "calls", "rows"), BROKEN.values(), ids=BROKEN)
def test_what_may_not_happen_is_found(rule: str, calls: list[Operation], rows: list[Row]) -> None:
    assert rule in {breach.rule for breach in check_history(calls, rows)}


@pytest.mark.parametrize("outcome", [OK, UNKNOWN])
def test_half_a_batch_is_found(outcome: Outcome) -> None:
    told = [{"id": "1", "version": 1}, {"id": "2", "version": 1}] if outcome is OK else []
    drafts = [{"content": "a"}, {"content": "b"}]
    batch = call(Kind.WRITE, (0, 1), drafts, id="w", outcome=outcome, result=told)
    assert check_history([batch], [row(1, "a"), row(1, "b", id="2")]) == []
    assert {breach.rule for breach in check_history([batch], [row(1, "a")])} & {"torn", "lost"}


class _Store:
    """A store without faults, one memory, calls one after another: what it answers is always right."""

    def __init__(self) -> None:
        self.version, self.content, self.live, self.calls, self.clock = 1, "a", True, [FIRST], 2.0

    def step(self, deed: str, answered: bool, stored: bool) -> None:
        at = (self.clock, self.clock + 1)
        self.clock += 2
        applied = self.live and (answered or stored)
        if deed == "get":
            self.calls.append(get(at, self.version if self.live else None, self.content))
        elif deed == "update":
            content = f"c{self.clock}"
            if self.live or not answered:
                self.calls.append(update(at, content, self.version + 1 if answered and self.live else None))
            if applied:
                self.version, self.content = self.version + 1, content
        else:
            if self.live or not answered:
                self.calls.append(delete(at, outcome=OK if answered and self.live else UNKNOWN))
            if applied:
                self.version, self.live = self.version + 1, False


STEPS = st.lists(st.tuples(st.sampled_from(["get", "update", "update", "delete"]), st.booleans(), st.booleans()))


@given(STEPS)
@settings(max_examples=300, deadline=None)
def test_a_store_that_keeps_its_word_is_never_accused(steps: list[tuple[str, bool, bool]]) -> None:
    store = _Store()
    for step in steps:
        store.step(*step)
    assert check_history(store.calls, [row(store.version, store.content, live=store.live)]) == []


@given(STEPS, st.integers(1, 3))
@settings(max_examples=300, deadline=None)
def test_a_store_that_forgets_told_changes_is_always_found(steps: list[tuple[str, bool, bool]], back: int) -> None:
    store = _Store()
    for step in steps:
        store.step(*step)
    told = max((c.result[0]["version"] for c in store.calls if c.kind is Kind.UPDATE and c.result), default=1)
    rolled_back = row(told - back, "older") if told > back else None
    if rolled_back is not None:
        assert check_history(store.calls, [rolled_back])
    assert check_history(store.calls, [])
