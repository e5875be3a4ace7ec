"""What commands print: tables and sentences for people on a terminal, one JSON document for machines with `--json`.

Results go to stdout, everything else (progress, errors, logs) to stderr, so that a pipe gets results alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from uuid import UUID

from pydantic import BaseModel
from rich.console import Console
from rich.table import Table

PIPE_WIDTH = 400


class Output:
    """Where one command writes to."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        # What reads a pipe wants one line per row, however long.
        self.console = Console(soft_wrap=True, highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)
        self.errors = Console(stderr=True, soft_wrap=True, highlight=False)

    def document(self, value: object) -> None:
        """The result as JSON."""
        sys.stdout.write(json.dumps(plain(value), ensure_ascii=False, indent=2) + "\n")

    def say(self, text: str) -> None:
        """A sentence for people; silent with `--json`."""
        if not self.as_json:
            self.console.print(text, markup=False)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
        """A table for people, or the sentence `empty`."""
        table = Table(*columns, header_style="bold", box=None, pad_edge=False)
        count = 0
        for count, row in enumerate(rows, 1):  # noqa: B007 - the count is used after the loop
            table.add_row(*("" if cell is None else str(cell) for cell in row))
        if count:
            self.console.print(table)
        else:
            self.say(empty)

    def error(self, message: str) -> None:
        """What went wrong, on stderr."""
        if self.as_json:
            sys.stderr.write(json.dumps({"error": message}, ensure_ascii=False) + "\n")
        else:
            self.errors.print(f"memplane: {message}", markup=False, style="red")


def plain(value: object) -> object:
    """A value as JSON: models by their wire names, times as ISO 8601."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True)
    if isinstance(value, dict):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(one) for one in value]
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    return value
