"""What a client makes of an answer, and how what targets hold is compared."""

from __future__ import annotations

import httpx
import pytest
from chaos.client import read_answer
from chaos.evidence import Held, compare
from chaos.journal import Outcome


def failed(code: str, message: str = "m") -> dict[str, object]:
    return {"status": "failed", "error": {"code": code, "message": message}}


@pytest.mark.parametrize(
    ("status", "body", "outcome"),
    [
        (200, {"status": "success", "output": {"deleted": ["1"]}}, Outcome.OK),
        (200, failed("CONFLICT"), Outcome.REFUSED),
        (200, failed("NOT_FOUND"), Outcome.REFUSED),
        (200, failed("STORE_UNAVAILABLE", "The store is unavailable"), Outcome.REFUSED),
        (200, failed("STORE_UNAVAILABLE", "The store became unavailable; the change may or may not"), Outcome.UNKNOWN),
        (200, failed("MEMORY_BACKEND_ERROR"), Outcome.UNKNOWN),
        (503, None, Outcome.REFUSED),
        (504, None, Outcome.UNKNOWN),
        (500, None, Outcome.UNKNOWN),
    ],
)
def test_only_a_promise_counts_as_refused(status: int, body: object, outcome: Outcome) -> None:
    found, code, items = read_answer(httpx.Response(status, json=body), "DELETE")
    assert found is outcome
    assert items == ([{"id": "1"}] if outcome is Outcome.OK else [])
    assert (code == "") is (outcome is Outcome.OK)


def test_every_difference_of_a_target_is_told() -> None:
    truth = {1: Held(1, "a"), 2: Held(2, "b"), 3: Held(1, "c"), 4: Held(1, "d")}
    held = {1: Held(1, "a", "x"), 2: Held(1, "b"), 3: Held(1, "z"), 5: Held(1, "e")}
    assert compare("milvus", truth, truth) == []
    assert [text.split(": ")[1].split(" ", 2)[:2] for text in compare("milvus", truth, held)] == [
        ["memory", "4"],
        ["memory", "5"],
        ["memory", "2"],
        ["memory", "3"],
    ]
