"""A journal tells what a client knew, also when the client was killed."""

from __future__ import annotations

from pathlib import Path

from chaos.journal import Journal, Kind, Operation, Outcome, read_journals


def test_a_call_without_an_answer_is_open(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "a.jsonl")
    answered, open_ = (Operation(name, Kind.DELETE, at, [{"id": "1"}], "ann") for name, at in [("b", 2.0), ("a", 1.0)])
    journal.begin(answered)
    journal.begin(open_)
    journal.end(answered, Outcome.OK, result=[{"id": "1"}])
    journal.close()
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write('{"id": "a", "ended": 3')
    first, second = read_journals([tmp_path / "a.jsonl"])
    assert (first.id, first.outcome, first.ended) == ("a", Outcome.UNKNOWN, float("inf"))
    assert (second.id, second.outcome, second.result) == ("b", Outcome.OK, [{"id": "1"}])
    assert second.ended > 2
