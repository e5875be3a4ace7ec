"""Hints after commits: soon, few, never in the way."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest

from memplane.schema import notifier
from memplane.schema.database import Database
from memplane.schema.notifier import Note, Notifier


class Sent:
    """Takes notes; fails as often as it is told to, waits while `gate` is shut."""

    def __init__(self) -> None:
        self.batches: list[list[Note]] = []
        self.failures = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, notes: Collection[Note]) -> None:
        await self.gate.wait()
        if self.failures:
            self.failures -= 1
            raise ConnectionResetError
        self.batches.append(sorted(notes))


async def test_the_first_note_leaves_at_once_and_a_burst_as_one() -> None:
    sent = Sent()
    told = Notifier(sent, errors=(OSError,))
    sent.gate.clear()
    for number in range(100):
        told.add({("a", str(number % 2))})
        await asyncio.sleep(0)
    sent.gate.set()
    told.add({("b", "x")})
    await told.close()
    assert sent.batches == [[("a", "0")], [("a", "0"), ("a", "1"), ("b", "x")]]


async def test_what_cannot_be_sent_is_lost_and_the_next_leaves() -> None:
    sent = Sent()
    told = Notifier(sent, errors=(OSError,))
    sent.failures = 1
    told.add({("a", "lost")})
    await asyncio.sleep(0)
    told.add({("a", "told")})
    await told.close()
    assert sent.batches == [[("a", "told")]]


async def test_closing_does_not_wait_for_a_server_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifier, "CLOSE_SECONDS", 0.01)
    sent = Sent()
    told = Notifier(sent, errors=(OSError,))
    sent.gate.clear()
    told.add({("a", "x")})
    async with asyncio.timeout(5):
        await told.close()
        await told.close()
    assert sent.batches == []


async def _roll_back(database: Database) -> None:
    async with database.transaction() as connection:
        database.notify_after_commit(connection, "memplane_test_notes", ["rolled back"])
        raise KeyError


async def test_only_what_commits_is_told_and_closing_tells_the_rest(database: Database) -> None:
    heard: list[str] = []
    listening = await database.connect_direct()
    try:
        await listening.add_listener("memplane_test_notes", lambda *call: heard.append(str(call[3])))
        with pytest.raises(KeyError):
            await _roll_back(database)
        async with database.transaction() as connection:
            database.notify_after_commit(connection, "memplane_test_notes", ["committed", "and more"])
            await listening.execute("SELECT 1")
            assert heard == [], "not before the commit"
        await database.close()
        await listening.execute("SELECT 1")
    finally:
        await listening.close()
    assert heard == ["and more", "committed"]
