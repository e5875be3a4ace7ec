"""Trouble on the way to the database: cancellation, timeouts, a server that goes away, callbacks that fail."""

from __future__ import annotations

import asyncio
import logging
import random

import asyncpg
import pytest
from tests.plugins.postgres.calls import Calls, memories, rows
from tests.plugins.postgres.conftest import ME

from memplane.contracts import CallOptions, Scope
from memplane.errors import IdentityError, PluginError, SchemaError
from memplane.outbox.events import Target
from memplane.plugins.postgres import PostgresBackend
from memplane.plugins.postgres.calls import changing, reading
from memplane.schema.committed import Committed
from memplane.schema.database import Database
from memplane.schema.tracing import current_traceparent
from memplane.signal import Signal, SignalAborted, SignalTimeout


async def sleeping(database: Database) -> int:
    found = await rows(
        database,
        "SELECT count(*) AS n FROM pg_stat_activity WHERE query LIKE '%pg_sleep(3%' AND state = 'active' "
        "AND pid <> pg_backend_pid() AND datname = current_database()",
    )
    return int(found[0]["n"])


async def until(condition) -> None:
    async with asyncio.timeout(10):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)  # another session is seen only by asking


@pytest.mark.parametrize("run", [reading, changing])
async def test_aborting_cancels_the_statement_and_raises_the_reason(database, run):
    signal = Signal()
    reason = ValueError("enough")

    async def work(connection: asyncpg.Connection) -> None:
        await connection.execute("SELECT pg_sleep(30)")

    task = asyncio.ensure_future(run(database, signal, work))
    await until(lambda: has_sleeper(database, True))
    signal.abort(reason)
    with pytest.raises(ValueError, match="enough"):
        await task
    await until(lambda: has_sleeper(database, False))
    assert await rows(database, "SELECT 1 AS one") == [{"one": 1}], "the connection went back clean"


async def has_sleeper(database: Database, wanted: bool) -> bool:
    return (await sleeping(database) > 0) is wanted


async def test_cancelling_the_task_rolls_back_and_frees_the_connection(postgres_settings, database):
    small = Database(postgres_settings.model_copy(update={"pool_max": 1}))
    started = asyncio.Event()

    async def work(connection: asyncpg.Connection) -> None:
        insert = small.sql("INSERT INTO {schema}.backend_identity SELECT FALSE, gen_random_uuid(), 'x', 1")
        await connection.execute(insert.replace("FALSE", "TRUE") + " ON CONFLICT DO NOTHING")
        started.set()
        await connection.execute("SELECT pg_sleep(30)")

    task = asyncio.ensure_future(changing(small, Signal(), work))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await rows(small, "SELECT pg_current_xact_id_if_assigned() AS xid") == [{"xid": None}]
    await small.close()


async def test_an_aborted_signal_never_reaches_the_database(store, database):
    signal = Signal()
    signal.abort()
    with pytest.raises(SignalAborted):
        await store.write("x", signal=signal)
    assert await memories(database) == {}


async def test_a_write_waiting_for_a_lock_can_be_aborted(store, database):
    target = await store.one("target")
    signal = Signal()
    link = {"relations": [{"type": "r", "target": target["id"]}]}
    async with database.transaction() as connection:
        await connection.execute(database.sql("SELECT FROM {schema}.long_term_memory FOR UPDATE"))
        task = asyncio.ensure_future(store.write({"content": "x", "metadata": link}, signal=signal))
        await until(lambda: waits_for_lock(database))
        signal.abort()
        with pytest.raises(SignalAborted):
            await task
    assert len(await memories(database)) == 1
    assert await store.write({"content": "x", "metadata": link})


async def waits_for_lock(database: Database) -> bool:
    found = await rows(
        database,
        "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()",
    )
    return bool(found)


async def test_a_statement_that_takes_too_long_is_an_unavailable_store(postgres_settings, database):
    slow = Database(postgres_settings.model_copy(update={"statement_timeout": 0.3}))
    store = Calls(PostgresBackend(slow, targets=[]).scoped(ME))
    await store.one("x")
    async with database.transaction() as connection:
        await connection.execute(database.sql("LOCK {schema}.long_term_memory IN ACCESS EXCLUSIVE MODE"))
        with pytest.raises(PluginError, match="STORE_UNAVAILABLE"):
            await store.query()
        with pytest.raises(PluginError, match="STORE_UNAVAILABLE"):
            await store.one("y")
    assert len((await store.query())["items"]) == 1
    await slow.close()


async def kill_others(database: Database) -> None:
    await rows(
        database,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )


async def test_killed_connections_are_replaced(store, database, postgres_settings):
    await store.one("x")
    other = Database(postgres_settings)
    for _ in range(10):
        await kill_others(other)
        assert (await store.query())["items"], "a read does not notice"
    await other.close()


async def test_a_change_survives_connections_that_died_in_the_pool(store, database, postgres_settings):
    other = Database(postgres_settings)
    for count in range(1, 6):
        await asyncio.gather(*(store.query() for _ in range(4)))
        await kill_others(other)
        await store.one("x")
        assert len(await memories(database)) == count
    await other.close()


async def test_a_connection_lost_in_a_change_says_that_its_outcome_is_open(database, postgres_settings):
    other = Database(postgres_settings)

    async def work(connection: asyncpg.Connection) -> None:
        pid = await connection.fetchval("SELECT pg_backend_pid()")
        await rows(other, "SELECT pg_terminate_backend($1)", pid)
        await connection.execute("SELECT 1")

    with pytest.raises(PluginError, match="may or may not have been stored") as caught:
        await changing(database, None, work)
    assert caught.value.code == "STORE_UNAVAILABLE"
    await other.close()


async def test_no_server_is_an_unavailable_store_without_driver_text():
    from memplane.settings import PostgresSettings

    away = Database(PostgresSettings(dsn="postgresql://user:secret@127.0.0.1:1/nothing", connect_timeout=2))
    store = Calls(PostgresBackend(away, targets=[]).scoped(ME))
    for call in (store.get("1"), store.query(), store.one("x"), store.delete("1")):
        with pytest.raises(PluginError) as caught:
            await call
        assert (caught.value.code, caught.value.safe_message) == ("STORE_UNAVAILABLE", "The store is unavailable")
        assert "secret" not in str(caught.value)
        assert "127.0.0.1" not in str(caught.value)


async def test_a_read_only_server_is_an_unavailable_store(store, database):
    async with database.acquire() as connection:
        name = await connection.fetchval("SELECT current_database()")
        await connection.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    reader = Database(database.settings)
    with pytest.raises(PluginError, match="STORE_UNAVAILABLE"):
        await Calls(PostgresBackend(reader, targets=[]).scoped(ME)).one("x")
    await reader.close()


async def test_deadlocks_are_retried_a_bounded_number_of_times(database):
    attempts = 0

    async def work(_: object) -> None:
        nonlocal attempts
        attempts += 1
        raise asyncpg.DeadlockDetectedError("deadlock detected")

    with pytest.raises(PluginError, match="STORE_BUSY"):
        await changing(database, None, work)
    assert attempts == 12


async def test_the_cache_learns_what_was_committed_and_may_fail(database, caplog):
    heard: list[Committed] = []

    def listen(committed: list[Committed]) -> None:
        heard.extend(committed)
        raise RuntimeError("secret detail")

    store = Calls(PostgresBackend(database, targets=list(Target), on_commit=listen).scoped(ME))
    with caplog.at_level(logging.WARNING):
        item = await store.one("x", metadata={"expires_at": "2999-01-01T00:00:00Z"})
        updated = (await store.update({"id": item["id"], "content": "y"}))[0]
        await store.delete(item["id"])
        with pytest.raises(PluginError):
            await store.update({"id": item["id"], "content": "z"})

    number = int(item["id"])
    assert [(c.memory_id, c.tenant, c.user_id, c.version, c.item) for c in heard] == [
        (number, ME.tenant, ME.user, 1, item),
        (number, ME.tenant, ME.user, 2, updated),
        (number, ME.tenant, ME.user, 3, None),
    ]
    assert [c.expires_at is not None for c in heard] == [True, True, False]
    assert "secret detail" not in caplog.text
    assert len(caplog.records) == 3


@pytest.mark.parametrize(
    ("tenant", "user", "field"),
    [
        ("", "u", "tenant"),
        ("t", "", "user"),
        ("t\0", "u", "tenant"),
        ("t", "\ud800", "user"),
        ("t" * 257, "u", "tenant"),
    ],
)
async def test_a_scope_that_cannot_be_stored_is_refused(backend, tenant, user, field):
    with pytest.raises(PluginError, match=f"INVALID_INPUT: {field} "):
        backend.scoped(Scope(tenant, user))


async def test_scopes_do_not_share_anything(backend):
    stores = [Calls(backend.scoped(Scope(t, u))) for t, u in (("a", "b"), ("ab", ""), ("a", "B"), ("A", "b")) if u]
    items = [await store.one("x", key="same") for store in stores]
    for store, item in zip(stores, items, strict=True):
        assert await store.get(*(i["id"] for i in items), keys=["same"]) == [item]
        assert await store.ids() == [item["id"]]


async def test_starting_checks_schema_and_identity(empty_postgres_settings, database, backend_id):
    empty = Database(empty_postgres_settings)
    with pytest.raises(SchemaError):
        await PostgresBackend(empty, targets=[]).start()
    await empty.close()

    backend = PostgresBackend(database, targets=[])
    await backend.start()
    assert backend.backend_id == backend_id
    await rows(database, "UPDATE {schema}.backend_identity SET database_oid = 1")
    with pytest.raises(IdentityError):
        await backend.start()


async def test_without_prepared_statements_everything_works(postgres_settings):
    database = Database(postgres_settings.model_copy(update={"prepared_statements": False}))
    store = Calls(PostgresBackend(database, targets=list(Target)).scoped(ME))
    item = await store.one({"a": 1}, key="k", metadata={"tags": ["x"]})
    assert await store.update({"id": item["id"], "content": "y"})
    assert (await store.query(filter={"tags": {"$contains": "x"}}))["items"][0]["content"] == "y"
    assert await store.delete(item["id"]) == [item["id"]]
    await database.close()


async def test_call_options_may_be_empty(backend):
    store = backend.scoped(ME)
    assert await store.get({"ids": ["1"], "keys": []}, CallOptions()) == []


async def test_events_carry_the_trace_of_the_call_that_made_them(store, database):
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    token = current_traceparent.set(parent)
    await store.one("traced")
    current_traceparent.reset(token)
    await store.one("untraced")

    found = await rows(database, "SELECT DISTINCT aggregate_id, traceparent FROM {schema}.memory_outbox ORDER BY 1")
    assert [row["traceparent"] for row in found] == [parent, None]


async def test_aborts_at_any_moment_leave_task_and_pool_clean(postgres_settings, database):
    """All or nothing whatever the moment; nothing lingers in the calling task, no connection is lost."""
    small = Database(postgres_settings.model_copy(update={"pool_max": 2}))
    store = Calls(PostgresBackend(small, targets=list(Target)).scoped(ME))
    await store.one("warm")
    dice = random.Random(11)
    acknowledged, aborted = 1, 0
    for _ in range(150):
        signal = Signal.timeout(dice.uniform(0, 0.012))
        try:
            await store.write("a", "b", signal=signal)
            acknowledged += 2
        except SignalTimeout:
            aborted += 1
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
    assert aborted > 10
    held = len(await memories(database))
    assert held % 2 == 1, "no batch is half there"
    assert acknowledged <= held <= acknowledged + 2 * aborted
    async with asyncio.timeout(10), small.acquire(), small.acquire() as connection:
        assert await connection.fetchval("SELECT pg_current_xact_id_if_assigned()") is None
    await small.close()
