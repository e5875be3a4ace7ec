"""Named points of the flows, for tests that kill a process there. In production nothing listens.

Every tool call passes `<tool>:before` (its effect has not begun) and `<tool>:after` (its effect stands, nobody has
been told). Changes of the task pass `<event>:during` inside the open transaction, calls to the service
`<tool>:noted` between the note in the task's history and the request, and writing a result file
`recovery_report:during` between the complete temporary file and its renaming. Stages change nowhere else, so these are
all boundaries of stages too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Probe(Protocol):
    """Told of every point that is reached, on the thread that reaches it."""

    def __call__(self, point: str) -> None: ...


def unprobed(point: str) -> None:
    """What production uses: nothing happens."""


def point_name(tool: str, arguments: Mapping[str, Any]) -> str:
    """A tool call's name in points: the tool, and for operations and checkpoints what is done."""
    kind = arguments.get("kind")
    if kind is None:
        return tool
    if "apply" not in arguments:
        return f"{tool}.{kind}"
    return f"{tool}.{kind}.{'submit' if arguments['apply'] else 'lookup'}"
