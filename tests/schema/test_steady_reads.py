"""Reads by primary key: planned once, never a scan, and no harm when their connections die."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import asyncpg
import pytest

from memplane.contracts import Scope
from memplane.plugins.postgres.query import _BY_ID
from memplane.schema.database import Database
from memplane.schema.steady_reads import MAX_AGE, PAUSE, SteadyReads

SCOPE = Scope("acme", "ann")
PID = "SELECT pg_backend_pid() AS pid, current_setting('plan_cache_mode') AS mode"


async def steady(database: Database) -> Any:
    """A row that a connection for steady reads has given; the first reads go through the pool."""
    async with asyncio.timeout(20):
        while (row := (await database.read(PID))[0])["mode"] != "force_generic_plan":  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.02)
    return row


async def test_reads_find_their_own_connections_and_the_pool_stays_as_it_is(database: Database) -> None:
    first = await steady(database)
    assert (await database.read(PID))[0]["pid"] == first["pid"]
    async with database.acquire() as connection:
        assert await connection.fetchval("SHOW plan_cache_mode") == "force_custom_plan"


async def test_a_read_by_id_uses_the_primary_key_even_in_an_empty_table(database: Database) -> None:
    await steady(database)
    statement = _BY_ID.replace("$1", "'t'").replace("$2", "'u'").replace("$3", "'{1,2}'")
    plan = await database.read(database.sql(f"EXPLAIN {statement}"))
    text = "\n".join(row[0] for row in plan)
    assert "long_term_memory_pkey" in text, text
    assert "Seq Scan" not in text, text


async def test_a_killed_connection_costs_no_read(database: Database) -> None:
    killed = await steady(database)
    async with database.acquire() as connection:
        await connection.execute("SELECT pg_terminate_backend($1)", killed["pid"])
    assert (await database.read("SELECT 7"))[0][0] == 7
    assert (await steady(database))["pid"] != killed["pid"]


async def test_a_cancelled_read_leaves_nothing_for_the_next_reader(database: Database) -> None:
    await steady(database)
    generator = random.Random(11)

    async def one(number: int) -> None:
        pause = generator.random() * 0.004
        try:
            async with asyncio.timeout(generator.random() * 0.006):
                rows = await database.read("SELECT $1::int, pg_sleep($2::float8)", number, pause)
        except TimeoutError:
            return
        assert rows[0][0] == number

    for start in range(0, 300, 10):
        await asyncio.gather(*(one(number) for number in range(start, start + 10)))
    assert (await database.read("SELECT 5"))[0][0] == 5


async def test_a_refused_statement_is_the_callers_and_keeps_the_connection(database: Database) -> None:
    first = await steady(database)
    with pytest.raises(asyncpg.DataError):
        await database.read("SELECT $1::int", "no number")
    with pytest.raises(asyncpg.DivisionByZeroError):
        await database.read("SELECT 1 / $1::int", 0)
    assert (await steady(database))["pid"] == first["pid"]


async def test_none_without_prepared_statements_or_when_turned_off(database: Database) -> None:
    for change in ({"prepared_statements": False}, {"steady_reads": 0}):
        other = Database(database.settings.model_copy(update=change))
        for _ in range(3):
            assert (await other.read("SELECT current_setting('plan_cache_mode')"))[0][0] != "force_generic_plan"
        await other.close()


class FakeConnection:
    def __init__(self) -> None:
        self.ended = False
        self.answer: list[Any] | BaseException = [1]

    def is_closed(self) -> bool:
        return self.ended

    def terminate(self) -> None:
        self.ended = True

    async def fetch(self, statement: str, *arguments: object) -> list[Any]:
        await asyncio.sleep(0)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


async def test_connections_grow_old_and_failures_to_connect_are_not_repeated_at_once() -> None:
    now, refused = 0.0, True
    made: list[FakeConnection] = []

    async def connect() -> Any:
        made.append(FakeConnection())
        if refused:
            raise OSError("away")
        return made[-1]

    reads = SteadyReads(connect, 2, errors=(OSError,), clock=lambda: now)

    async def answered() -> bool:
        rows = await reads.fetch("SELECT 1", ())
        await asyncio.sleep(0.01)
        return rows is not None

    assert [await answered() for _ in range(3)] == [False] * 3
    assert len(made) == 1
    now, refused = PAUSE, False
    assert [await answered() for _ in range(3)] == [False, True, True]
    assert len(made) == 2
    now += MAX_AGE
    assert [await answered() for _ in range(2)] == [False, True]
    assert [connection.ended for connection in made] == [False, True, False]
    made[2].answer = OSError("gone")
    assert [await answered() for _ in range(3)] == [False, False, True]
    assert [connection.ended for connection in made] == [False, True, True, False]
    await reads.close()
    assert all(connection.ended for connection in made[1:])
