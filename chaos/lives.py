"""Calls sorted by the memory that they touched: what was told, what is open, what was seen."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from chaos.journal import Kind, Operation, Outcome


@dataclass(frozen=True, slots=True)
class Row:
    """A memory in PostgreSQL, tombstones included. `origin` is the id of the write that made it."""

    id: str
    version: int
    content: str
    live: bool
    origin: str
    user: str = ""
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """One call's part in the life of a memory. `version` is None when it was not told, `content` for a delete."""

    call: Operation
    version: int | None = None
    content: str | None = None
    expected: int | None = None


@dataclass(frozen=True, slots=True)
class Sight:
    """A read that showed the memory."""

    call: Operation
    version: int
    content: str


@dataclass(slots=True)
class Life:
    """Everything that was done to one memory, and seen of it."""

    told: list[Change] = field(default_factory=list)
    """Writes and updates whose answers say that they were stored."""
    open: list[Change] = field(default_factory=list)
    """Writes and updates without an answer."""
    deleted: list[Operation] = field(default_factory=list)
    deletes_open: list[Operation] = field(default_factory=list)
    conflicts: list[Change] = field(default_factory=list)
    """Refused for the version that they expected; batches are left out, any of their entries may be the reason."""
    seen: list[Sight] = field(default_factory=list)
    missed: list[Operation] = field(default_factory=list)
    """Calls that were told that it is not there: reads by id, updates and deletes."""


def lives_of(calls: Sequence[Operation], rows: Sequence[Row]) -> dict[str, Life]:
    """By memory id. A row that an open write made is told from its origin."""
    lives: defaultdict[str, Life] = defaultdict(Life)
    open_writes = {call.id: call for call in calls if call.kind is Kind.WRITE and call.outcome is Outcome.UNKNOWN}
    for row in rows:
        if (write := open_writes.get(row.origin)) is not None:
            lives[row.id].open += [Change(write, None, draft["content"]) for draft in write.request]
    for call in calls:
        if call.kind is Kind.DELETE:
            _add_delete(lives, call)
        elif call.kind in (Kind.WRITE, Kind.UPDATE):
            _add_change(lives, call)
        elif call.outcome is Outcome.OK:
            _add_read(lives, call)
    return dict(lives)


def _add_change(lives: defaultdict[str, Life], call: Operation) -> None:
    if call.outcome is Outcome.OK:
        for entry, stored in zip(call.request, call.result, strict=True):
            change = Change(call, stored["version"], entry["content"], entry.get("expectedVersion"))
            lives[stored["id"]].told.append(change)
    elif call.kind is Kind.UPDATE and call.outcome is Outcome.UNKNOWN:
        for entry in call.request:
            lives[entry["id"]].open.append(Change(call, None, entry["content"], entry.get("expectedVersion")))
    elif call.kind is Kind.UPDATE:
        _add_conflict(lives, call)


def _add_delete(lives: defaultdict[str, Life], call: Operation) -> None:
    if call.outcome is Outcome.OK:
        gone = {entry["id"] for entry in call.result}
        for entry in call.request:
            life = lives[entry["id"]]
            (life.deleted if entry["id"] in gone else life.missed).append(call)
    elif call.outcome is Outcome.UNKNOWN:
        for entry in call.request:
            lives[entry["id"]].deletes_open.append(call)
    else:
        _add_conflict(lives, call)


def _add_conflict(lives: defaultdict[str, Life], call: Operation) -> None:
    if len(call.request) != 1:
        return
    entry = call.request[0]
    if call.code == "CONFLICT":
        lives[entry["id"]].conflicts.append(Change(call, expected=entry.get("expectedVersion")))
    elif call.code == "NOT_FOUND":
        lives[entry["id"]].missed.append(call)


def _add_read(lives: defaultdict[str, Life], call: Operation) -> None:
    for item in call.result:
        lives[item["id"]].seen.append(Sight(call, item["version"], item["content"]))
    if call.kind is Kind.GET:
        shown = {item["id"] for item in call.result}
        for entry in call.request:
            if entry["id"] not in shown:
                lives[entry["id"]].missed.append(call)
