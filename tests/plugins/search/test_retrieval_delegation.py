"""The `retrieval` search plugin: the same search in another process, over the HTTP transport."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from memplane.conformance import SearchConformance
from memplane.contracts import CallOptions, Scope, SearchBackend, StoreBackend
from memplane.errors import PluginError, SettingsError
from memplane.nodes import create_memory
from memplane.outbox.events import Target
from memplane.plugins.postgres import PostgresBackend
from memplane.plugins.registry import Resources, create_search
from memplane.plugins.search.delegation import WORKER_ADDRESS, MemoryTargets, scope_of
from memplane.retrieval import create_retrieval, create_retrieval_worker
from memplane.retrieval.degradation import collect_degraded, report_degraded
from memplane.runtime import Runtime, create_runtime, serve_http
from memplane.schema.database import Database
from memplane.settings import PostgresSettings
from tests.nodes.fakes import Searcher
from tests.plugins.search.world import World

TOKEN = "a token between service and retrieval process"


def far_runtime(backend: SearchBackend) -> Runtime:
    runtime = create_runtime(host_id=WORKER_ADDRESS["hostId"], process_id=WORKER_ADDRESS["processId"])
    runtime.register(create_retrieval_worker(providers=MemoryTargets(backend)), id=WORKER_ADDRESS["workerId"])
    return runtime


def near(url: str, **options: Any) -> SearchBackend:
    return create_search("retrieval", {"url": url, "token": TOKEN, **options}, Resources())


class TestDelegatedSearch(SearchConformance):
    """Everything that the hybrid search promises holds through the HTTP transport, too."""

    pytestmark = pytest.mark.asyncio(loop_scope="module")
    world: World

    @pytest.fixture
    def backend(self, world: World) -> StoreBackend:  # type: ignore[override]
        self.world = world
        return world.store

    @pytest_asyncio.fixture(loop_scope="module")
    async def search(self, world: World) -> AsyncIterator[SearchBackend | None]:  # type: ignore[override]
        far = far_runtime(world.search_backend())
        server = await serve_http(far, token=TOKEN, max_body_bytes=2**24)
        backend = near(server.url)
        await backend.start()
        yield backend
        await backend.close()
        await server.close()
        await far.close()

    @pytest.fixture
    def strategies(self) -> Sequence[str]:  # type: ignore[override]
        return ("vector", "keyword", "graph", "hybrid")

    async def settle(self) -> None:
        """Searches must see what was written at once."""


class Far:
    """A search backend whose searches do what the test says, in a runtime of its own."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.scopes: list[Scope] = []
        self.searcher = Searcher(search=answer)

    async def start(self) -> None: ...
    async def close(self) -> None: ...

    def scoped(self, scope: Scope) -> Any:
        self.scopes.append(scope)
        return self.searcher


async def search_through(far: Far, request: Any, *, scope: Scope | None = None, **options: Any) -> Any:
    runtime = far_runtime(far)
    server = await serve_http(runtime, token=TOKEN)
    backend = near(server.url, **options)
    await backend.start()
    try:
        return await backend.scoped(scope or Scope("acme", "ada")).search(request, CallOptions())
    finally:
        await backend.close()
        await server.close()
        await runtime.close()


MEMORY = {"id": "7", "content": "x", "version": 1}


async def test_scope_request_and_hits_travel_unchanged() -> None:
    far = Far([{"memory": MEMORY, "score": 0.5, "metadata": {"branches": {}}}])
    request = {"query": {"text": "q"}, "strategy": "vector", "filter": {"a": 1}, "limit": 3, "options": {"rrfK": 5}}
    hits = await search_through(far, request)
    assert far.scopes == [Scope("acme", "ada")]
    assert far.searcher.inputs("search") == [request]
    source = {"target": "memories", "ref": "7"}
    assert hits == [{"memory": MEMORY, "score": 0.5, "metadata": {"branches": {}, "source": source}}]


async def test_a_search_without_strategy_stays_without_one() -> None:
    far = Far([])
    await search_through(far, {"query": "q", "limit": 3})
    assert far.searcher.inputs("search") == [{"query": "q", "limit": 3}]


async def test_what_the_search_went_without_is_reported_here() -> None:
    def degraded(input: Any, options: Any) -> Any:
        report_degraded("milvus")
        return []

    with collect_degraded() as collected:
        await search_through(Far(degraded), {"query": "q", "limit": 3})
    assert collected == {"milvus"}


@pytest.mark.parametrize("code", ["INVALID_INPUT", "UNSUPPORTED_STRATEGY", "UNSUPPORTED_FILTER", "SEARCH_UNAVAILABLE"])
async def test_errors_meant_for_the_caller_arrive(code: str) -> None:
    with pytest.raises(PluginError) as caught:
        await search_through(Far(PluginError(code, "the message")), {"query": "q", "limit": 3})
    assert (caught.value.code, caught.value.safe_message) == (code, "the message")


@pytest.mark.parametrize(
    "answer", [RuntimeError("secret"), PluginError("STORE_UNAVAILABLE", "secret"), None, [{"memory": {"id": "1"}}]]
)
async def test_anything_else_is_search_unavailable(answer: Any) -> None:
    with pytest.raises(PluginError) as caught:
        await search_through(Far(answer), {"query": "q", "limit": 3})
    assert caught.value.code == "SEARCH_UNAVAILABLE"
    assert "secret" not in str(caught.value)


async def test_a_wrong_token_or_a_process_that_is_away_is_search_unavailable() -> None:
    with pytest.raises(PluginError) as caught:
        await search_through(Far([]), {"query": "q", "limit": 3}, token="wrong")
    assert caught.value.code == "SEARCH_UNAVAILABLE"
    backend = near("http://127.0.0.1:1")
    search = backend.scoped(Scope("a", "b"))
    for _ in range(2):  # before start and after it
        with pytest.raises(PluginError) as caught:
            await search.search({"query": "q", "limit": 1}, CallOptions())
        assert caught.value.code == "SEARCH_UNAVAILABLE"
        await backend.start()
    await backend.close()
    await backend.close()


@pytest.mark.parametrize("metadata", [None, {}, {"tenant": "a"}, {"tenant": "a", "user": ""}, {"tenant": 1, "user": 2}])
async def test_without_a_scope_nothing_is_searched(metadata: Any) -> None:
    far = Far([])
    target = {"name": "memories"} if metadata is None else {"name": "memories", "metadata": metadata}
    result = await create_retrieval(providers=MemoryTargets(far)).search({"query": {"content": "q"}, "target": target})
    assert result.error is not None
    assert result.error.code == "RETRIEVAL_INVALID_INPUT"
    assert far.scopes == []
    other = {"query": {"content": "q"}, "target": {"name": "others", "metadata": {"tenant": "a", "user": "b"}}}
    result = await create_retrieval(providers=MemoryTargets(far)).search(other)
    assert result.error is not None
    assert result.error.code == "RETRIEVAL_TARGET_NOT_FOUND"


def test_scopes_come_from_the_targets_metadata_alone() -> None:
    assert scope_of({"name": "memories", "metadata": {"tenant": "a", "user": "b"}}) == Scope("a", "b")


@pytest.mark.parametrize(
    "options",
    [
        {"url": "http://h"},
        {"url": "http://h", "token": "x", "token_file": "y"},
        {"token": "x"},
        {"url": "", "token": "x"},
    ],
)
def test_options_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=r"search\.options of 'retrieval'"):
        create_search("retrieval", options, Resources())


@pytest.mark.parametrize("options", [{"url": "ftp://h", "token": "x"}, {"url": "http://h", "token": " "}])
async def test_what_only_the_transport_knows_is_checked_at_start(options: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=r"search\.options of 'retrieval'"):
        await create_search("retrieval", options, Resources()).start()


async def test_an_unreadable_token_file_is_named(tmp_path: Path) -> None:
    backend = create_search("retrieval", {"url": "http://h", "token_file": str(tmp_path / "no")}, Resources())
    with pytest.raises(SettingsError, match="token_file cannot be read"):
        await backend.start()


async def _listening(process: asyncio.subprocess.Process) -> str:
    assert process.stderr is not None
    seen: list[str] = []
    async for line in process.stderr:
        seen.append(line.decode())
        try:
            document = json.loads(line)
        except ValueError:
            continue
        if document.get("message") == "listening":
            return str(document["url"])
    raise AssertionError("".join(seen))


async def _drain(process: asyncio.subprocess.Process) -> None:
    assert process.stderr is not None
    await process.stderr.read()


async def _until_ready(url: str) -> None:
    async with httpx.AsyncClient() as client, asyncio.timeout(60):
        while (await client.get(f"{url}/readyz")).status_code != 200:  # noqa: ASYNC110 - another process's state
            await asyncio.sleep(0.1)


async def test_memory_search_delegates_to_another_process(postgres_settings: PostgresSettings, tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    token_file.write_text(TOKEN + "\n")
    assert postgres_settings.dsn is not None
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("MEMPLANE_")},
        "MEMPLANE_POSTGRES__DSN": postgres_settings.dsn.get_secret_value(),
        "MEMPLANE_RETRIEVAL__PORT": "0",
        "MEMPLANE_RETRIEVAL__TOKEN_FILE": str(token_file),
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "from memplane.cli import main; main()", "retrieval",
        env=environment, stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        async with asyncio.timeout(60):
            url = await _listening(process)
        reading = asyncio.create_task(_drain(process))
        await _until_ready(url)
        database = Database(postgres_settings, application_name="memplane-tests")
        store = PostgresBackend(database, targets=frozenset[Target]())
        search = create_search("retrieval", {"url": url, "token_file": str(token_file)}, Resources())
        await store.start()
        await search.start()
        try:
            own, foreign = Scope("acme", "ada"), Scope("acme", "bob")
            memory = create_memory(store=store.scoped(own), search=search.scoped(own))
            [item] = (await memory.write({"memories": [{"content": "searched in another process"}]})).unwrap()
            [hit] = (await memory.search({"query": "another process"})).unwrap()
            assert hit["memory"] == item
            other = create_memory(store=store.scoped(foreign), search=search.scoped(foreign))
            assert (await other.search({"query": "another process"})).unwrap() == []
            refused = await memory.search({"query": "x", "strategy": "vector"})
            assert refused.error is not None
            assert refused.error.code == "UNSUPPORTED_STRATEGY"
            assert "keyword" in refused.error.message
            async with httpx.AsyncClient() as client:
                answer = await client.post(f"{url}/ditto/invoke", json={}, headers={"authorization": "Bearer wrong"})
                assert answer.status_code == 401
                assert (await client.get(f"{url}/livez")).status_code == 200
        finally:
            await search.close()
            await store.close()
            await database.close()
    finally:
        process.terminate()
        await process.wait()
    await reading
    assert process.returncode == 0
