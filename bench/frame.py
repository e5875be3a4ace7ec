"""What a row of the benchmarks is, and the table at the end. Source: design section 11.

A row is a module of `bench.rows` with `NAME`, `TITLE` and `async run(bench) -> Result | list[Result]`. It measures the
product and the named peer in the same run, alternating where it can, and checks what it has measured: a figure whose
work cannot be found again in the stores is an error, not a result.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, dataclass, field
from uuid import uuid4

import asyncpg
from rich.console import Console
from rich.table import Table
from tests.stack import Stack

from memplane.schema.database import Database
from memplane.schema.migrate import migrate
from memplane.settings import PostgresSettings

DIMENSIONS = 384
TENANT = "bench"


@dataclass(frozen=True, slots=True)
class Result:
    """One measured row. `bound` is the ratio of product to peer that has to be reached; None for absolute rows.

    `higher_is_better` decides in which direction: rates are at least, times at most.
    """

    row: str
    product: float
    unit: str
    higher_is_better: bool
    peer: float | None = None
    peer_name: str = ""
    bound: float | None = None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        return self.product / self.peer if self.peer else None

    @property
    def reached(self) -> bool | None:
        """Did the row reach its bound? None when it has none."""
        if self.bound is None:
            return None
        value = self.ratio if self.peer else self.product
        assert value is not None
        return value >= self.bound if self.higher_is_better else value <= self.bound

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "ratio": self.ratio, "reached": self.reached}


@dataclass(slots=True)
class Bench:
    """What rows share: the servers, the size of the run and the screen."""

    stack: Stack
    quick: bool = False
    console: Console = field(default_factory=lambda: Console(stderr=True))

    def size(self, full: int, quick: int) -> int:
        """A number of things: smaller in a quick run, whose figures only show that the row works."""
        return quick if self.quick else full

    def say(self, text: str) -> None:
        self.console.print(f"  [dim]{text}[/dim]", highlight=False)

    @contextlib.asynccontextmanager
    async def database(self, *, migrated: bool = True, pool_max: int = 10) -> AsyncIterator[Database]:
        """A new database, migrated with an identity of its own, dropped afterwards."""
        name = f"memplane_bench_{uuid4().hex[:12]}"
        await self._administer(f'CREATE DATABASE "{name}"')
        database = Database(self.postgres_settings(name, pool_max), application_name="memplane-bench")
        try:
            if migrated:
                await migrate(database)
            yield database
        finally:
            await database.close()
            await self._administer(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def postgres_settings(self, name: str, pool_max: int = 10) -> PostgresSettings:
        return PostgresSettings.model_validate(
            {"dsn": self.stack.dsn(name), "pool_max": pool_max, "statement_timeout": 600}
        )

    async def _administer(self, statement: str) -> None:
        connection = await asyncpg.connect(self.stack.dsn(), timeout=30)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()


class Unverified(Exception):  # noqa: N818 - what became of a figure
    """The work that a figure claims cannot be found in the stores."""


def verify(condition: bool, what: str) -> None:
    if not condition:
        raise Unverified(what)


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0..1) of the values lie, by nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def show(results: Sequence[Result], write: Callable[[Table], None]) -> None:
    """The table of all rows."""
    table = Table(title=f"memplane beside its peers ({os.cpu_count()} cores, Python {sys.version.split()[0]})")
    for heading in ("row", "memplane", "peer", "unit", "ratio", "bound", ""):
        table.add_column(heading, justify="left" if heading in ("row", "unit", "") else "right")
    for result in results:
        relation = "≥" if result.higher_is_better else "≤"
        of_peer = " ×" if result.peer else f" {result.unit}"
        table.add_row(
            result.row,
            figure(result.product),
            f"{figure(result.peer)} ({result.peer_name})" if result.peer else "",
            result.unit,
            f"{result.ratio:.2f}" if result.ratio is not None else "",
            f"{relation} {result.bound:g}{of_peer}" if result.bound is not None else "",
            {True: "reached", False: "[bold red]missed[/bold red]", None: ""}[result.reached],
        )
    write(table)
