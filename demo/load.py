"""Writing the corpus: what is missing of it, with its relations, and waiting until it is projected."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from demo.client import Client
from demo.corpus import Passage, see_also

READER = "reader"
"""The user who owns the corpus."""
BATCH = 50
WRITERS = 4


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a run wrote: `seconds` is the time of the writes alone."""

    kept: int
    written: int
    seconds: float


def bar(console: Console) -> Progress:
    """The progress bars of this demo; on a pipe they print nothing but their end."""
    return Progress(
        TextColumn("  {task.description:<34}"),
        BarColumn(36),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )


async def load(client: Client, console: Console, passages: Sequence[Passage]) -> Loaded:
    """Write the passages that the service does not hold yet. Heads first: the others are related to them."""
    ids = await _existing(client, passages)
    kept = len(ids)
    missing = [passage for passage in passages if passage.key not in ids]
    if not missing:
        return Loaded(kept, 0, 0.0)
    started = time.perf_counter()
    with bar(console) as progress:
        task = progress.add_task("writing memories", total=len(missing))
        for group in ([p for p in missing if p.number == 0], [p for p in missing if p.number > 0]):
            drafts = [_draft(passage, ids) for passage in group]
            for written in await _write(client, drafts, lambda count: progress.advance(task, count)):
                ids |= written
    seconds = time.perf_counter() - started
    await _relate(client, ids)
    return Loaded(kept, len(missing), seconds)


async def _existing(client: Client, passages: Sequence[Passage]) -> dict[str, str]:
    keys = [passage.key for passage in passages]
    found = await client.call("MEMORY.GET", {"keys": keys}, READER)
    return {item["key"]: item["id"] for item in found}


def _draft(passage: Passage, ids: Mapping[str, str]) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "category": "python",
        "tags": [passage.topic],
        "heading": passage.heading,
        "importance": 0.8 if passage.number == 0 else 0.5,
    }
    if passage.number > 0:
        metadata["relations"] = [{"type": "part_of", "target": ids[f"{passage.topic}/0"]}]
    return {"key": passage.key, "content": f"{passage.heading}\n\n{passage.text}", "metadata": metadata}


async def _write(client: Client, drafts: Sequence[dict[str, Any]], advance: Any) -> list[dict[str, str]]:
    """Batches, a few at a time; returns id by key for each."""
    gate = asyncio.Semaphore(WRITERS)

    async def one(batch: Sequence[dict[str, Any]]) -> dict[str, str]:
        async with gate:
            items = await client.call("MEMORY.WRITE", {"memories": list(batch)}, READER)
        advance(len(batch))
        return {item["key"]: item["id"] for item in items}

    return await asyncio.gather(*(one(drafts[at : at + BATCH]) for at in range(0, len(drafts), BATCH)))


async def _relate(client: Client, ids: Mapping[str, str]) -> None:
    """Topics that refer to each other become related: an update of each topic's first passage."""
    heads = await client.call("MEMORY.GET", {"keys": [key for key in ids if key.endswith("/0")]}, READER)
    targets: dict[str, list[str]] = {}
    for source, target in see_also():
        targets.setdefault(f"{source}/0", []).append(ids[f"{target}/0"])
    changes = [
        {
            "id": head["id"],
            "expectedVersion": head["version"],
            "metadata": {
                **head["metadata"],
                "relations": [{"type": "see_also", "target": target} for target in targets[head["key"]]],
            },
        }
        for head in heads
        if head["key"] in targets
    ]
    await client.call("MEMORY.UPDATE", {"memories": changes}, READER)


async def converge(client: Client, console: Console, *, patience: float = 120) -> float:
    """Show how the backlog falls to zero; returns the seconds that took. Raises `TimeoutError`."""
    started = time.perf_counter()
    with bar(console) as progress:
        tasks: dict[str, Any] = {}
        async with asyncio.timeout(patience):
            while True:
                left = await client.backlog()
                for name, count in left.items():
                    if name not in tasks:
                        if not count:
                            continue  # nothing to show: it has caught up before we looked
                        tasks[name] = progress.add_task(f"projecting to {name}", total=count)
                    task = progress.tasks[tasks[name]]
                    total = max(int(task.total or 0), count)
                    progress.update(tasks[name], total=total, completed=total - count)
                if not any(left.values()):
                    return time.perf_counter() - started
                await asyncio.sleep(0.1)
