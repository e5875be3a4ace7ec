"""A client of the service: `python -m chaos.client`, its orders as JSON on stdin; ends on SIGTERM.

Several tasks write, update, delete, read and search over HTTP, at any of the services, and note every call in a journal
before it leaves. A call without an answer is left as it is, now and then asked again as a new call: a client that
retries a write under a key learns from the CONFLICT that the first one was stored.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import signal
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from chaos.journal import Journal, Kind, Operation, Outcome

NOT_STORED = frozenset(
    {"CONFLICT", "NOT_FOUND", "INVALID_INPUT", "STORE_BUSY", "SEARCH_UNAVAILABLE", "UNSUPPORTED_STRATEGY"}
)
"""Errors of a node that promise that nothing happened."""
NOTHING_SENT = "The store is unavailable"
KEPT = 300
"""Memories that a client remembers; the oldest are forgotten."""
STRATEGIES = ("hybrid", "vector", "keyword", "graph")
DEEDS = {"write": 5, "update": 8, "delete": 2, "get": 4, "search": 1, "browse": 1}


@dataclass(frozen=True)
class Orders:
    """What a client is told. `rate`: calls per second of this process."""

    name: str
    seed: int
    urls: list[str]
    key: str
    users: list[str]
    rate: float
    tasks: int
    timeout: float
    journal: str


@dataclass(frozen=True)
class Known:
    """A memory as this client saw it last."""

    id: str
    version: int
    origin: str


class Client:
    """All tasks of one process share what it knows."""

    def __init__(self, orders: Orders, http: httpx.AsyncClient, journal: Journal) -> None:
        self._orders = orders
        self._http = http
        self._journal = journal
        self._numbers = itertools.count()
        self._known: dict[str, deque[Known]] = {user: deque(maxlen=KEPT) for user in orders.users}

    async def run(self, number: int, stop: asyncio.Event) -> None:
        """One task: a call, a rest, until told to stop."""
        dice = random.Random(f"{self._orders.seed}:{self._orders.name}:{number}")
        pause = self._orders.tasks / self._orders.rate
        while not stop.is_set():
            began = time.monotonic()
            await self._one(dice)
            left = pause * dice.uniform(0.5, 1.5) - (time.monotonic() - began)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), max(0.001, left))

    async def _one(self, dice: random.Random) -> None:
        user = dice.choice(self._orders.users)
        deed = dice.choices(list(DEEDS), list(DEEDS.values()))[0]
        if deed == "browse":
            await self._browse(user)
        elif deed == "write" or len(self._known[user]) < 5:
            await self._write(dice, user)
        elif deed == "update":
            await self._update(dice, user)
        elif deed == "delete":
            await self._delete(dice, user)
        elif deed == "get":
            ids = sorted({dice.choice(self._known[user]).id for _ in range(dice.randint(1, 4))})
            call = self._begin(Kind.GET, user, [{"id": one} for one in ids])
            await self._call(call, "GET", {"ids": ids})
        else:
            call = self._begin(Kind.SEARCH, user, [])
            query = {"query": f"note {dice.randint(0, 60)}", "limit": 20, "strategy": dice.choice(STRATEGIES)}
            await self._call(call, "SEARCH", query)

    async def _write(self, dice: random.Random, user: str) -> None:
        key = f"slot-{dice.randint(0, 40)}" if dice.random() < 0.4 else None
        count = 1 if key else dice.choice([1, 1, 2, 3])
        for _ in range(3):
            drafts = [{"content": self._content(dice), **({"key": key} if key else {})} for _ in range(count)]
            call = self._begin(Kind.WRITE, user, drafts)
            memories = [{**draft, "metadata": self._metadata(dice, user, call.id)} for draft in drafts]
            await self._call(call, "WRITE", {"memories": memories})
            if call.outcome is not Outcome.UNKNOWN or dice.random() < 0.5:
                return

    async def _update(self, dice: random.Random, user: str) -> None:
        chosen = {one.id: one for one in (dice.choice(self._known[user]) for _ in range(dice.choice([1, 1, 1, 2])))}
        entries: list[dict[str, Any]] = []
        for memory in chosen.values():
            entry: dict[str, Any] = {"id": memory.id, "content": self._content(dice)}
            if dice.random() < 0.5:
                entry["expectedVersion"] = memory.version
            entries.append(entry)
        call = self._begin(Kind.UPDATE, user, entries)
        memories = [
            entry
            | ({"metadata": self._metadata(dice, user, chosen[entry["id"]].origin)} if dice.random() < 0.3 else {})
            for entry in entries
        ]
        await self._call(call, "UPDATE", {"memories": memories})

    async def _delete(self, dice: random.Random, user: str) -> None:
        memory = dice.choice(self._known[user])
        document: dict[str, Any] = {"ids": [memory.id]}
        entry: dict[str, Any] = {"id": memory.id}
        if dice.random() < 0.5:
            document["expectedVersions"] = {memory.id: memory.version}
            entry["expectedVersion"] = memory.version
        await self._call(self._begin(Kind.DELETE, user, [entry]), "DELETE", document)

    async def _browse(self, user: str) -> None:
        """Learn what the others wrote."""
        call = self._begin(Kind.SEARCH, user, [])
        await self._call(call, "QUERY", {"limit": 30, "orderBy": [{"field": "updatedAt", "direction": "desc"}]})

    def _content(self, dice: random.Random) -> str:
        """Unique, so that a content tells which call it came from."""
        return f"note {dice.randint(0, 60)} of {self._orders.name} number {next(self._numbers)}"

    def _metadata(self, dice: random.Random, user: str, origin: str) -> dict[str, Any]:
        made: dict[str, Any] = {"origin": origin, "importance": round(dice.random(), 3)}
        known = self._known[user]
        if len(known) > 5 and dice.random() < 0.4:
            made["relations"] = [{"type": dice.choice(["likes", "knows"]), "target": dice.choice(known).id}]
        return made

    def _begin(self, kind: Kind, user: str, request: list[dict[str, Any]]) -> Operation:
        name = f"{self._orders.name}-{next(self._numbers)}"
        return Operation(name, kind, 0.0, request, user)

    async def _call(self, call: Operation, node: str, document: Any) -> None:
        """Make the call and note what came back."""
        url = f"{random.Random(call.id).choice(self._orders.urls)}/v1/nodes/MEMORY.{node}"
        headers = {"Authorization": f"Bearer {self._orders.key}", "X-Memory-User": call.user}
        call.began = time.monotonic()
        self._journal.begin(call)
        try:
            response = await self._http.post(url, json=document, headers=headers)
        except httpx.ConnectError:
            self._journal.end(call, Outcome.REFUSED, code="NOT_CONNECTED")
        except httpx.TransportError as error:
            self._journal.end(call, Outcome.UNKNOWN, code=type(error).__name__)
        else:
            outcome, code, items = read_answer(response, node)
            self._journal.end(call, outcome, code=code, result=[_noted(item) for item in items])
            self._remember(call.user, [item for item in items if "version" in item])

    def _remember(self, user: str, items: Sequence[Mapping[str, Any]]) -> None:
        for item in items:
            self._known[user].append(Known(item["id"], item["version"], item["metadata"]["origin"]))


def read_answer(response: httpx.Response, node: str) -> tuple[Outcome, str, list[dict[str, Any]]]:
    """What an answer says: outcome, error code, items. Status 503 comes before anything was done."""
    if response.status_code != httpx.codes.OK:
        done = Outcome.REFUSED if response.status_code == httpx.codes.SERVICE_UNAVAILABLE else Outcome.UNKNOWN
        return done, f"HTTP {response.status_code}", []
    answer = response.json()
    if answer["status"] == "success":
        return Outcome.OK, "", _items(node, answer["output"])
    error = answer["error"]
    nothing = error["code"] in NOT_STORED or error["message"] == NOTHING_SENT
    return Outcome.REFUSED if nothing else Outcome.UNKNOWN, error["code"], []


def _items(node: str, output: Any) -> list[dict[str, Any]]:
    if node == "SEARCH":
        return [hit["memory"] for hit in output]
    if node == "QUERY":
        return list(output["items"])
    if node == "DELETE":
        return [{"id": memory} for memory in output["deleted"]]
    return list(output)


def _noted(item: Mapping[str, Any]) -> dict[str, Any]:
    return {name: item[name] for name in ("id", "version", "content") if name in item}


async def run(orders: Orders) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    journal = Journal(Path(orders.journal))
    async with httpx.AsyncClient(timeout=orders.timeout) as http:
        client = Client(orders, http, journal)
        await asyncio.gather(*(client.run(number, stop) for number in range(orders.tasks)))
    journal.close()


if __name__ == "__main__":
    asyncio.run(run(Orders(**json.load(sys.stdin))))
