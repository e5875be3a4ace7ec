"""What the demo shows, step by step."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from demo.client import Client, Found
from demo.corpus import passages
from demo.load import READER, Loaded, bar, converge, load

QUESTIONS = (
    ("hybrid", "which exception is raised when a mapping key is not found?"),
    ("hybrid", "comma as a thousands separator when formatting numbers"),
    ("vector", "context manager of the with statement, entering and exiting"),
    ("keyword", "metaclass keyword argument"),
)
NOTES = 100
RATE = 25
"""Single writes, and how many of them a second, for the figures."""


class Story:
    """Runs the steps on a service and prints what a person would want to see."""

    def __init__(self, client: Client, console: Console) -> None:
        self.client = client
        self.console = console
        self.figures: list[tuple[str, str]] = []

    async def run(self) -> None:
        targets = await self.client.backlog()
        if "neo4j" not in targets:
            self.console.print(
                "  The graph is off: no Neo4j is configured (MEMPLANE_NEO4J__URI and __PASSWORD turn it on)."
            )
        await self.fill()
        await self.ask(graph="neo4j" in targets)
        await self.change()
        await self.isolate()
        await self.measure()
        self.print_figures()

    def title(self, text: str) -> None:
        self.console.print(f"\n[bold cyan]{escape(text)}[/bold cyan]")

    async def fill(self) -> None:
        self.title("1. The topics of Python's own documentation become memories")
        loaded = await load(self.client, self.console, passages())
        if loaded.written == 0:
            self.console.print(f"  {loaded.kept} memories are here from an earlier run; nothing to write.")
        seconds = await converge(self.client, self.console)
        if loaded.written:
            self._loading_figures(loaded, seconds)

    def _loading_figures(self, loaded: Loaded, seconds: float) -> None:
        rate = f"{loaded.written / loaded.seconds:,.0f} memories/s ({loaded.written} in {loaded.seconds:.1f} s)"
        self.figures.append(("writes in batches of 50, over HTTP", rate))
        self.figures.append(("all projections caught up after", f"{seconds:.1f} s more"))

    async def ask(self, *, graph: bool) -> None:
        self.title("2. Search: vectors, keywords and both fused")
        for strategy, question in (*QUESTIONS, *((("graph", "class definitions"),) if graph else ())):
            started = time.perf_counter()
            found = await self.client.search(READER, question, strategy=strategy, limit=3)
            self.show(strategy, question, found, time.perf_counter() - started)

    def show(self, prefix: str, question: str, found: Found, seconds: float) -> None:
        """One question and its hits."""
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        table.add_column(justify="right", style="dim", no_wrap=True, min_width=9)
        table.add_column(style="green", no_wrap=True, width=22, overflow="ellipsis")
        table.add_column(overflow="ellipsis", no_wrap=True)
        for hit in found.hits:
            memory = hit["memory"]
            table.add_row(
                f"    {hit.get('score', 0):.3f}",
                escape(memory.get("key") or memory["id"]),
                escape(_excerpt(memory, question)),
            )
        without = f", without {found.degraded}" if found.degraded else ""
        self.console.print(f"  [bold]{prefix}:[/bold] {escape(question)} [dim]({1000 * seconds:.0f} ms{without})[/dim]")
        self.console.print(table if found.hits else "    nothing")

    async def change(self) -> None:
        self.title("3. A memory is written, changed and deleted; search follows at once")
        draft = {"content": "Ada's train to Lisbon leaves on 12 May at 9:40.", "metadata": {"category": "travel"}}
        (note,) = await self.client.call("MEMORY.WRITE", {"memories": [draft]}, "ada")
        await self._ask_ada("just written")
        text = "Ada's train to Lisbon was moved to 14 May at 7:15."
        change = {"id": note["id"], "content": text, "expectedVersion": note["version"]}
        await self.client.call("MEMORY.UPDATE", {"memories": [change]}, "ada")
        await self._ask_ada("updated")
        await self.client.call("MEMORY.DELETE", {"ids": [note["id"]]}, "ada")
        await self._ask_ada("deleted")

    async def _ask_ada(self, state: str) -> None:
        started = time.perf_counter()
        question = "when does the train to Lisbon leave?"
        found = await self.client.search("ada", question, limit=1)
        self.show(state, question, found, time.perf_counter() - started)

    async def isolate(self) -> None:
        self.title("4. Nobody sees another user's memories")
        started = time.perf_counter()
        question = QUESTIONS[0][1]
        found = await self.client.search("bob", question, limit=3)
        self.show("bob asks", question, found, time.perf_counter() - started)

    async def measure(self) -> None:
        self.title(f"5. {NOTES} single writes, {RATE} a second: how long until they are projected?")
        ids, latencies = await self._notes()
        await converge(self.client, self.console)
        self.figures.append(("one write over HTTP", _percentiles(latencies)))
        for target in await self.client.backlog():
            seconds = await self.client.projection_seconds(target, ids)
            if seconds:
                self.figures.append((f"from commit to {target}", _percentiles(seconds)))
        await self.client.call("MEMORY.DELETE", {"ids": ids}, "figures")

    async def _notes(self) -> tuple[list[str], list[float]]:
        ids: list[str] = []
        latencies: list[float] = []
        begin = time.perf_counter()
        with bar(self.console) as progress:
            task = progress.add_task("writing one at a time", total=NOTES)
            for number in range(NOTES):
                await asyncio.sleep(max(0.0, begin + number / RATE - time.perf_counter()))
                started = time.perf_counter()
                draft = {"content": f"Measurement {number}: the time from a write to its projection."}
                (item,) = await self.client.call("MEMORY.WRITE", {"memories": [draft]}, "figures")
                latencies.append(time.perf_counter() - started)
                ids.append(item["id"])
                progress.advance(task)
        return ids, latencies

    def print_figures(self) -> None:
        self.title("Figures of this machine, embedded servers, everything in one process")
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        for name, value in self.figures:
            table.add_row(f"  {name}", f"[bold]{value}[/bold]")
        self.console.print(table)


def _excerpt(memory: dict[str, Any], question: str, *, width: int = 84) -> str:
    """The part of the text that shares most words with the question, for a line of a table."""
    text = " ".join(str(memory["content"]).split())
    wanted = set(_words(question))
    starts = [0, *(match.end() for match in re.finditer(r"(?<=[.:;]) ", text))]
    best = max(starts, key=lambda start: (len(wanted & set(_words(text[start : start + width]))), -start))
    found = text[best : best + width]
    return ("… " if best else "") + found + (" …" if best + width < len(text) else "")


def _words(text: str) -> list[str]:
    """Words of some length: short ones are everywhere and tell nothing."""
    return [word for word in re.findall(r"\w+", text.lower()) if len(word) > 3]


def _percentiles(values: list[float]) -> str:
    ordered = sorted(values)
    p50, p99 = (ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.5, 0.99))
    return f"p50 {1000 * p50:.0f} ms, p99 {1000 * p99:.0f} ms"
