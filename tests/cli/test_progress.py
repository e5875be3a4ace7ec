"""What a person at a terminal sees of a long command, and that nobody else sees any of it."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from memplane.cli.output import Output
from memplane.cli.progress import shown


def output(*, terminal: bool, as_json: bool = False) -> tuple[Output, io.StringIO]:
    written = io.StringIO()
    made = Output(as_json=as_json)
    made.errors = Console(file=written, force_terminal=terminal, width=120)
    return made, written


@pytest.mark.parametrize(("measured", "expected"), [(True, "30/100"), (False, "0:00:0")])
def test_a_terminal_shows_what_is_done(measured: bool, expected: str) -> None:
    made, written = output(terminal=True)
    with shown(made, "beginning", measured=measured) as show:
        show("comparing milvus, 3 differences", 30, 100)
    text = written.getvalue()
    assert "comparing milvus, 3 differences" in text
    assert expected in text
    assert text.endswith("\x1b[2K"), "the line is taken away at the end"


@pytest.mark.parametrize(("done", "total", "expected"), [(7, None, "7/?"), (7, 0, "7/?"), (12, 10, "12/12")])
def test_totals_are_estimates(done: int, total: int | None, expected: str) -> None:
    made, written = output(terminal=True)
    with shown(made, "beginning") as show:
        show("copying", done, total)
    assert expected in written.getvalue()


@pytest.mark.parametrize(("terminal", "as_json"), [(False, False), (True, True)])
def test_pipes_and_machines_see_nothing(terminal: bool, as_json: bool) -> None:
    made, written = output(terminal=terminal, as_json=as_json)
    with shown(made, "beginning") as show:
        show("copying", 1, 2)
    assert written.getvalue() == ""
