"""A store of one kind with a search of another: the store in MySQL, its search behind the plugin `retrieval`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest
from tests.plugins.milvus.conftest import new_backend

from memplane.conformance import SearchConformance
from memplane.contracts import CallOptions, Scope, SearchBackend, StoreBackend
from memplane.errors import SettingsError
from memplane.nodes import create_memory
from memplane.plugins.mysql.backend import MysqlBackend
from memplane.plugins.mysql.settings import MysqlSettings
from memplane.plugins.registry import Resources, create_search
from memplane.plugins.search.delegation import WORKER_ADDRESS, MemoryTargets
from memplane.retrieval import create_retrieval_worker
from memplane.runtime import create_runtime, serve_http
from memplane.settings import MilvusSettings, StoreSettings

TOKEN = "a token between service and retrieval process"


class TestMysqlWithRetrieval(SearchConformance):
    """Everything that a search promises holds when it runs elsewhere, on a backend and connections of its own."""

    @pytest.fixture
    async def backend(self, module_mysql_dsn: str) -> AsyncIterator[StoreBackend]:  # type: ignore[override]
        backend = MysqlBackend(MysqlSettings.model_validate({"dsn": module_mysql_dsn}))
        await backend.start()
        yield backend
        await backend.close()

    @pytest.fixture
    async def search(self, module_mysql_dsn: str, backend: StoreBackend) -> AsyncIterator[SearchBackend | None]:  # type: ignore[override]
        far = MysqlBackend(MysqlSettings.model_validate({"dsn": module_mysql_dsn}))
        await far.start()
        runtime = create_runtime(host_id=WORKER_ADDRESS["hostId"], process_id=WORKER_ADDRESS["processId"])
        runtime.register(create_retrieval_worker(providers=MemoryTargets(far)), id=WORKER_ADDRESS["workerId"])
        server = await serve_http(runtime, token=TOKEN)
        near = create_search("retrieval", {"url": server.url, "token": TOKEN}, Resources())
        await near.start()
        yield near
        await near.close()
        await server.close()
        await runtime.close()
        await far.close()

    @pytest.fixture
    def strategies(self) -> Sequence[str]:  # type: ignore[override]
        return ("keyword",)


async def test_a_search_backend_of_another_database_stands_beside_any_store(
    backend: MysqlBackend, milvus_settings: MilvusSettings
) -> None:
    """MySQL answers GET and QUERY, Milvus answers SEARCH; what is in Milvus is the application's business here."""
    index = new_backend(milvus_settings, f"memplane_test_{uuid4().hex}")
    await index.start()
    try:
        scope = Scope("acme", "ada")
        memory = create_memory(store=backend.scoped(scope), search=index.scoped(scope))
        drafts = [{"key": f"k{n}", "content": text} for n, text in enumerate(["about otters", "about basalt"])]
        await memory.write({"memories": drafts})
        copy = [{**draft, "metadata": {"key": draft["key"]}} for draft in drafts]
        await create_memory(store=index.scoped(scope)).write({"memories": copy})
        [hit] = (await memory.search({"query": "otters", "limit": 1})).unwrap()
        [item] = (await memory.get({"keys": [hit["memory"]["metadata"]["key"]]})).unwrap()
        assert item["content"] == "about otters"
        refused = await memory.search({"query": "otters", "strategy": "keyword"})
        assert refused.error is not None
        assert refused.error.code == "UNSUPPORTED_STRATEGY"
    finally:
        await index.collection.drop()
        await index.close()


@dataclass(frozen=True)
class Chosen:
    """The part of the root settings that tells where the memories are."""

    store: StoreSettings


async def test_native_is_the_search_of_the_store_that_was_chosen(backend: MysqlBackend, mysql_dsn: str) -> None:
    settings: Any = Chosen(StoreSettings(plugin="mysql", options={"dsn": mysql_dsn}))
    scope = Scope("acme", "ada")
    await create_memory(store=backend.scoped(scope)).write({"memories": [{"content": "about otters"}]})
    # The service gives its store; `memplane retrieval` has none and gets its own.
    for resources in (Resources(settings=settings, store=backend), Resources(settings=settings)):
        search = create_search("native", {}, resources)
        await search.start()
        [hit] = await search.scoped(scope).search({"query": "otters", "limit": 3}, CallOptions())
        assert hit["memory"]["content"] == "about otters"
        await search.close()
    with pytest.raises(SettingsError, match="native"):
        create_search("hybrid", {}, Resources(settings=settings, store=backend))
