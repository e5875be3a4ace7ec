"""What only this store can get wrong: its pool, its bounds, its schema, its secrets."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from memplane.contracts import CallOptions, Scope
from memplane.errors import PluginError, SchemaError, SettingsError, TargetUnavailable
from memplane.nodes import create_memory
from memplane.plugins.mysql import reads
from memplane.plugins.mysql.backend import MysqlBackend
from memplane.plugins.mysql.pool import Pool
from memplane.plugins.mysql.settings import MysqlSettings, parse_dsn
from memplane.plugins.registry import Resources, create_store
from memplane.settings import StoreSettings
from memplane.signal import Signal

ME = Scope("acme", "ada")


async def run(pool: Pool, statement: str) -> list[tuple[Any, ...]]:
    async with pool.acquire() as session:
        return await session.rows(statement)


@pytest.fixture
async def pool(mysql_settings: MysqlSettings) -> Any:
    pool = Pool(mysql_settings)
    yield pool
    await pool.close()


async def test_several_processes_start_on_an_empty_database_at_once(mysql_settings: MysqlSettings) -> None:
    backends = [MysqlBackend(mysql_settings) for _ in range(4)]
    await asyncio.gather(*(backend.start() for backend in backends))
    written = await asyncio.gather(
        *(backend.scoped(ME).write({"memories": [{"content": 1}] * 5}, CallOptions()) for backend in backends)
    )
    assert len({item["id"] for items in written for item in items}) == 20
    for backend in backends:
        await backend.close()


async def test_a_newer_schema_is_refused(backend: MysqlBackend, pool: Pool, mysql_settings: MysqlSettings) -> None:
    await run(pool, "INSERT INTO memplane_schema VALUES (99)")
    with pytest.raises(SchemaError):
        await MysqlBackend(mysql_settings).start()


async def test_a_cancelled_statement_leaves_no_connection_behind(mysql_settings: MysqlSettings) -> None:
    pool = Pool(mysql_settings.model_copy(update={"pool_max": 1}))
    for _ in range(3):
        task = asyncio.create_task(run(pool, "SELECT SLEEP(5)"))
        await asyncio.sleep(0.1)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert await run(pool, "SELECT 7") == [(7,)]
    await pool.close()


async def test_a_signal_ends_a_read_that_waits(backend: MysqlBackend, pool: Pool) -> None:
    store = backend.scoped(ME)
    [item] = await store.write({"memories": [{"content": 1}]}, CallOptions())
    async with pool.acquire() as session:
        await session.run("START TRANSACTION")
        await session.rows(f"SELECT id FROM memplane_memory WHERE id = {item['id']} FOR UPDATE")
        signal = Signal()
        asyncio.get_running_loop().call_later(0.1, signal.abort, KeyError("enough"))
        with pytest.raises(KeyError, match="enough"):
            await store.update({"memories": [{"id": item["id"], "content": 2}]}, CallOptions(signal))
        await session.run("ROLLBACK")
    [changed] = await store.update({"memories": [{"id": item["id"], "content": 3}]}, CallOptions())
    assert (changed["content"], changed["version"]) == (3, 2)


async def test_a_restarted_server_is_no_error(backend: MysqlBackend, pool: Pool) -> None:
    store = backend.scoped(ME)
    [item] = await store.write({"memories": [{"content": 1}]}, CallOptions())
    for work in (
        lambda: store.get({"ids": [item["id"]], "keys": []}, CallOptions()),
        lambda: store.update({"memories": [{"id": item["id"], "content": 2}]}, CallOptions()),
        lambda: store.query({"limit": 5}, CallOptions()),
    ):
        async with pool.acquire() as session:
            [(own,)] = await session.rows("SELECT CONNECTION_ID()")
            others = await session.rows("SELECT id FROM information_schema.processlist WHERE db = DATABASE()")
            for (number,) in others:
                if number != own:
                    await session.run(f"KILL {number}")
        assert await work()


async def test_a_filter_that_sql_cannot_decide_is_bounded(
    backend: MysqlBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "WINDOW", 10)
    monkeypatch.setattr(reads, "MAX_SCANNED", 30)
    memory = create_memory(store=backend.scoped(ME))
    await memory.write({"memories": [{"content": n, "metadata": {"n": n}} for n in range(95)]})
    found: list[Any] = []
    request: dict[str, Any] = {"filter": {"n": {"$in": [5, 25, 35, 64, 94]}}}
    pages = 0
    while True:
        page = (await memory.query(request)).unwrap()
        found += [item["content"] for item in page["items"]]
        pages += 1
        if "nextCursor" not in page:
            break
        request["cursor"] = page["nextCursor"]
    assert found == [5, 25, 35, 64, 94]
    assert pages == 4
    none = await memory.query({"filter": {"n": {"$gt": 94}}})
    assert none.error is not None
    assert none.error.code == "UNSUPPORTED_FILTER"


async def test_expired_memories_are_swept(backend: MysqlBackend, pool: Pool) -> None:
    past = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    drafts = [{"content": "one two", "metadata": {"expires_at": past}}, {"content": "three"}]
    await backend.scoped(ME).write({"memories": drafts}, CallOptions())
    assert await backend.expire() == 1
    assert await backend.expire() == 0
    assert await run(pool, "SELECT (SELECT COUNT(*) FROM memplane_memory), COUNT(*) FROM memplane_word") == [(1, 1)]


async def test_updates_and_deletes_leave_no_words_behind(backend: MysqlBackend, pool: Pool) -> None:
    store = backend.scoped(ME)
    [item] = await store.write({"memories": [{"content": "alpha beta gamma"}]}, CallOptions())
    await store.update({"memories": [{"id": item["id"], "content": "delta"}]}, CallOptions())
    assert await run(pool, "SELECT COUNT(*) FROM memplane_word") == [(1,)]
    await store.delete({"ids": [item["id"]]}, CallOptions())
    assert await run(pool, "SELECT COUNT(*) FROM memplane_word") == [(0,)]


async def test_search_ranks_rare_words_first_and_filters(backend: MysqlBackend) -> None:
    memory = create_memory(store=backend.scoped(ME))
    drafts = [{"content": f"the common note {n}", "metadata": {"n": n, "category": "a"}} for n in range(20)]
    await memory.write({"memories": [*drafts, {"content": "the common zebra", "metadata": {"n": 99}}]})
    hits = (await memory.search({"query": "common zebra", "limit": 3})).unwrap()
    assert hits[0]["memory"]["content"] == "the common zebra"
    assert hits[0]["score"] > hits[1]["score"] > 0
    hits = (await memory.search({"query": "common", "filter": {"n": {"$gte": 18}, "category": "a"}})).unwrap()
    assert [hit["memory"]["content"] for hit in hits] == ["the common note 18", "the common note 19"]


async def test_nobody_there_is_said_without_the_password(
    caplog: pytest.LogCaptureFixture, mysql_settings: MysqlSettings
) -> None:
    caplog.set_level(logging.DEBUG)
    for dsn in ("mysql://ada:open-sesame@127.0.0.1:1/db", None):
        if dsn is None:
            assert mysql_settings.dsn is not None
            address = parse_dsn(mysql_settings.dsn.get_secret_value())
            dsn = f"mysql://{address.user}:open-sesame@{address.host}:{address.port}/{address.database}"
        settings = MysqlSettings.model_validate({"dsn": dsn, "connect_timeout": 2})
        with pytest.raises(TargetUnavailable) as raised:
            await MysqlBackend(settings).start()
        assert "open-sesame" not in f"{raised.value}{raised.value.__cause__}{settings!r}{caplog.text}"


async def test_the_driver_logs_nothing(
    caplog: pytest.LogCaptureFixture, backend: MysqlBackend, mysql_settings: MysqlSettings, pool: Pool
) -> None:
    caplog.set_level(logging.DEBUG)
    again = MysqlBackend(mysql_settings)
    await again.start()  # finds the tables, of which the server warns
    await again.close()
    await run(pool, "SELECT CAST('open-sesame' AS SIGNED)")
    assert [record for record in caplog.records if record.name.startswith("asyncmy")] == []


async def test_a_store_that_goes_away_says_so(backend: MysqlBackend, mysql_settings: MysqlSettings) -> None:
    store = backend.scoped(ME)
    backend._pool.settings = mysql_settings.model_validate({"dsn": "mysql://a:b@127.0.0.1:1/c", "connect_timeout": 1})
    await backend._pool.close()
    for work in (store.query({"limit": 1}, CallOptions()), store.write({"memories": [{"content": 1}]}, CallOptions())):
        with pytest.raises(PluginError) as raised:
            await work
        assert raised.value.code == "STORE_UNAVAILABLE"


def test_the_dsn_may_come_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "dsn").write_text("mariadb://a:p%40ss@db:3307/memories\n")
    store = create_store("mysql", {"dsn_file": str(tmp_path / "dsn")}, Resources(settings=StoreSettings()))
    assert store.capabilities["atomicBatches"]
    address = parse_dsn("mariadb://a:p%40ss@db:3307/memories")
    assert (address.host, address.port, address.user, address.password) == ("db", 3307, "a", "p@ss")


@pytest.mark.parametrize("dsn", ["", "mysql://host/db", "postgres://a:b@c/d", "mysql://a:b@c", "mysql://a:b@c:x/d"])
def test_a_bad_dsn_is_refused_without_repeating_it(dsn: str) -> None:
    with pytest.raises(SettingsError) as raised:
        create_store("mysql", {"dsn": dsn}, Resources())
    assert dsn == "" or dsn not in str(raised.value)
    with pytest.raises(ValidationError):
        MysqlSettings()
