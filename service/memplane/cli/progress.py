"""How far a long command is, for a person at a terminal: one line on stderr that is gone when the command ends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Protocol

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from memplane.cli.output import Output


class Show(Protocol):
    """Says what is being done, how much of it is done, and of about how much in all (None or 0: unknown)."""

    def __call__(self, doing: str, done: int = 0, total: int | None = None) -> None: ...


def _nobody_looks(doing: str, done: int = 0, total: int | None = None) -> None:
    pass


@contextlib.contextmanager
def shown(output: Output, doing: str, *, measured: bool = True) -> Iterator[Show]:
    """Show progress while the block runs; nothing without a terminal, or with `--json`.

    measured: a bar with the time that is left; else a spinner with the time that has passed.
    """
    if output.as_json or not output.errors.is_terminal:
        yield _nobody_looks
        return
    columns: tuple[ProgressColumn, ...] = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    if measured:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=output.errors, transient=True) as bar:
        task = bar.add_task(doing, total=None)

        def show(doing: str, done: int = 0, total: int | None = None) -> None:
            bar.update(task, description=doing, completed=done, total=max(done, total) if total else None)

        yield show
