"""The entry point `postgres`: options, and what it takes from the process."""

from __future__ import annotations

import pytest
from tests.plugins.postgres.calls import Calls, pending
from tests.plugins.postgres.conftest import ME

from memplane.errors import PluginError, SettingsError
from memplane.outbox.events import Target
from memplane.plugins.postgres import PostgresBackend
from memplane.plugins.postgres.plugin import configured_targets
from memplane.plugins.registry import Resources, create_store
from memplane.settings import CacheSettings, MilvusSettings, Neo4jSettings, Section, StoreSettings


class Root(Section):
    """As much of a process's settings as the plugin reads."""

    milvus: MilvusSettings = MilvusSettings()
    neo4j: Neo4jSettings = Neo4jSettings()
    cache: CacheSettings = CacheSettings(max_bytes=0)
    store: StoreSettings = StoreSettings()


def test_targets_are_those_with_an_address_and_the_cache_unless_off():
    assert configured_targets(None) == frozenset()
    assert configured_targets(Root()) == frozenset()
    everything = Root(
        milvus=MilvusSettings(uri="http://127.0.0.1:19530"),
        neo4j=Neo4jSettings(uri="bolt://127.0.0.1:7687"),
        cache=CacheSettings(),
    )
    assert configured_targets(everything) == frozenset(Target)


async def test_the_process_pool_and_settings_are_used(database):
    root = Root(milvus=MilvusSettings(uri="http://127.0.0.1:19530"), store=StoreSettings(require_expected_version=True))
    backend = create_store("postgres", {}, Resources(settings=root, database=database))
    assert isinstance(backend, PostgresBackend)
    await backend.start()
    store = Calls(backend.scoped(ME))
    item = await store.one("x")

    assert await pending(database) == {(int(item["id"]), "upsert_memory_vector", 1)}
    with pytest.raises(PluginError, match="expectedVersion"):
        await store.update({"id": item["id"], "content": 1})
    await backend.close()
    assert await store.get(item["id"]) == [item], "a shared pool stays open"


async def test_options_win_over_the_process(database, postgres_settings):
    assert postgres_settings.dsn is not None
    options = {
        "postgres": {"dsn": postgres_settings.dsn.get_secret_value()},
        "targets": ["neo4j"],
        "require_expected_version": False,
    }
    root = Root(cache=CacheSettings(), store=StoreSettings(require_expected_version=True))
    backend = create_store("postgres", options, Resources(settings=root))
    await backend.start()
    store = Calls(backend.scoped(ME))
    item = await store.one("x")
    await store.update({"id": item["id"], "content": "y"})

    assert await pending(database) == {(int(item["id"]), "upsert_memory_graph_node", 2)}
    await backend.close()


def test_mistakes_are_named():
    with pytest.raises(SettingsError, match="database"):
        create_store("postgres", {}, Resources())
    with pytest.raises(SettingsError, match=r"targets\.0"):
        create_store("postgres", {"targets": ["mysql"]}, Resources())
    with pytest.raises(SettingsError, match="nonsense"):
        create_store("postgres", {"nonsense": 1}, Resources())
