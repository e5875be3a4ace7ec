"""Searches while a store is away, slow or refuses; cancellation; nothing hangs and nothing is left running."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from memplane.contracts import CallOptions
from memplane.errors import PluginError, RetrievalError, TargetUnavailable
from memplane.plugins.search.branches import BranchFailed, Guard
from memplane.projections.milvus_client import MilvusConnection
from memplane.projections.neo4j_client import Neo4jConnection
from memplane.retrieval.degradation import collect_degraded
from memplane.schema.database import Database
from memplane.settings import MilvusSettings, Neo4jSettings, PostgresSettings
from memplane.signal import Signal
from tests.plugins.search.world import World, contents, ids

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that accepts connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        yield listener.getsockname()[1]


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
    return port


async def memories(world: World) -> str:
    [ship] = await world.write("octopus in the reef")
    await world.write({"content": "a diver", "metadata": {"relations": [{"type": "saw", "target": ship["id"]}]}})
    await world.project()
    return ship["id"]


async def test_without_milvus_the_default_search_goes_on(world: World, closed_port: int) -> None:
    ship = await memories(world)
    away = MilvusConnection(MilvusSettings(uri=f"http://127.0.0.1:{closed_port}", timeout=1))
    backend = world.search_backend(milvus=away, branch_timeout=3)
    with collect_degraded() as degraded:
        hits = await world.search("octopus", backend=backend)
    assert degraded == {"milvus"}
    assert ids(hits)[0] == ship
    assert len(hits) == 2
    with pytest.raises(PluginError, match="vector is unavailable: milvus") as error:
        await world.search("octopus", strategy="vector", backend=backend)
    assert error.value.code == "SEARCH_UNAVAILABLE"
    assert ids(await world.search("octopus", strategy="keyword", backend=backend)) == [ship]
    await away.close()


async def test_without_neo4j_the_default_search_goes_on(world: World, closed_port: int) -> None:
    ship = await memories(world)
    away = Neo4jConnection(Neo4jSettings(uri=f"bolt://127.0.0.1:{closed_port}", timeout=1))
    backend = world.search_backend(neo4j=away)
    with collect_degraded() as degraded:
        hits = await world.search("octopus", backend=backend, limit=1)
    assert degraded == {"neo4j"}
    assert ids(hits) == [ship]
    with pytest.raises(PluginError, match="graph is unavailable: neo4j"):
        await world.search("octopus", strategy="graph", backend=backend)
    await away.close()


async def test_the_graph_can_do_with_keywords_alone(world: World, closed_port: int) -> None:
    ship = await memories(world)
    away = MilvusConnection(MilvusSettings(uri=f"http://127.0.0.1:{closed_port}", timeout=1))
    backend = world.search_backend(milvus=away)
    with collect_degraded() as degraded:
        hits = await world.search("octopus", strategy="graph", backend=backend)
    assert degraded == {"milvus"}
    assert ids(hits)[0] == ship
    assert contents(hits)[1] == "a diver"
    await away.close()


async def test_a_silent_store_costs_one_timeout_and_then_nothing(world: World, silent_port: int) -> None:
    ship = await memories(world)
    silent = MilvusConnection(MilvusSettings(uri=f"http://127.0.0.1:{silent_port}", timeout=30))
    backend = world.search_backend(milvus=silent, branch_timeout=0.5, cooldown=30)
    started = time.monotonic()
    assert ids(await world.search("octopus", backend=backend))[0] == ship
    assert time.monotonic() - started < 5
    started = time.monotonic()
    with collect_degraded() as degraded:
        assert ids(await world.search("octopus", backend=backend))[0] == ship
    assert degraded == {"milvus"}
    assert time.monotonic() - started < 0.5


class Broken:
    """A provider that fails in a way of its own."""

    def __init__(self, like: Any, failure: Exception) -> None:
        self.model, self.revision, self.dimensions = like.model, like.revision, like.dimensions
        self._failure = failure

    async def embed(self, contents: Sequence[str], *, purpose: str, signal: Signal | None = None) -> Any:
        raise self._failure


@pytest.mark.parametrize("failure", [OSError("secret"), RetrievalError("X", "no"), RuntimeError("secret")])
async def test_without_embeddings_the_default_search_goes_on(world: World, failure: Exception) -> None:
    ship = await memories(world)
    backend = world.search_backend(embedding=Broken(world.embedding, failure), cooldown=0)
    with collect_degraded() as degraded:
        assert ids(await world.search("octopus", backend=backend))[0] == ship
    assert degraded == {"embedding"}
    with pytest.raises(PluginError, match="vector is unavailable: embedding") as error:
        await world.search("octopus", strategy="vector", backend=backend)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("failure", [OSError("secret"), RetrievalError("X", "no"), RuntimeError("secret")])
async def test_a_new_memory_that_cannot_be_embedded_does_not_end_the_search(world: World, failure: Exception) -> None:
    """The question is a vector, Milvus answers: what is missing is only what nobody can embed."""
    await memories(world)
    [new] = await world.write(f"an octopus that no model takes, {type(failure).__name__}")
    backend = world.search_backend(embedding=Broken(world.embedding, failure), cooldown=0)
    vector = list((await world.embedding.embed(["octopus"], purpose="query"))[0])
    with collect_degraded() as degraded:
        found = ids(await world.search({"vector": vector}, strategy="vector", backend=backend))
    assert degraded == {"embedding"}
    assert len(found) == 2
    assert new["id"] not in found


async def test_another_model_is_not_mixed_with_the_active_one(world: World) -> None:
    await memories(world)
    other = Broken(world.embedding, OSError())
    other.model = "another model"
    backend = world.search_backend(embedding=other)
    with pytest.raises(PluginError, match="embedding"):
        await world.search("octopus", strategy="vector", backend=backend)
    vector = (await world.embedding.embed(["octopus"], purpose="query"))[0]
    assert len(await world.search({"vector": list(vector)}, strategy="vector", backend=backend)) == 2


async def test_without_postgresql_nothing_is_found(world: World, closed_port: int) -> None:
    away = Database(PostgresSettings(dsn=f"postgresql://x@127.0.0.1:{closed_port}/x", connect_timeout=1))
    lost = World(away, world.store, world.embedding, world.milvus, world.neo4j)
    for strategy in ("keyword", "vector", "hybrid"):
        with pytest.raises(PluginError) as error:
            await lost.search("octopus", strategy=strategy)
        assert error.value.code == "SEARCH_UNAVAILABLE"


async def test_an_aborted_signal_ends_the_search(world: World, silent_port: int) -> None:
    silent = MilvusConnection(MilvusSettings(uri=f"http://127.0.0.1:{silent_port}", timeout=30))
    search = world.search_backend(milvus=silent, branch_timeout=20).scoped(world.me)
    signal = Signal()
    asyncio.get_running_loop().call_later(0.2, signal.abort, KeyError("why"))
    started = time.monotonic()
    with pytest.raises(KeyError, match="why"):
        await search.search({"query": "x", "limit": 1}, CallOptions(signal=signal))
    with pytest.raises(KeyError, match="why"):
        await search.search({"query": "x", "limit": 1}, CallOptions(signal=signal))
    assert time.monotonic() - started < 3


async def test_branches_settle_before_a_search_fails(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = world.search_backend()
    settled = asyncio.Event()

    async def slow(*_: Any, **__: Any) -> list[Any]:
        await asyncio.sleep(0.3)
        settled.set()
        return []

    async def mistaken(*_: Any, **__: Any) -> Any:
        raise PluginError("UNSUPPORTED_FILTER", "no")

    assert backend.branches.vector is not None
    monkeypatch.setattr(backend.branches.keyword, "search", slow)
    monkeypatch.setattr(backend.branches.vector, "prepare", mistaken)
    with pytest.raises(PluginError, match="no"):
        await world.search("octopus", backend=backend)
    assert settled.is_set()


async def test_a_guard_leaves_a_dead_store_alone_for_a_while() -> None:
    now = [0.0]
    guard = Guard("vector", timeout=1, cooldown=2, clock=lambda: now[0])
    calls = []

    async def dead() -> None:
        calls.append(1)
        raise TargetUnavailable("milvus", "gone")

    async def well() -> str:
        return "answer"

    for moment, expected in ((0, 1), (1.9, 1), (2.1, 2)):
        now[0] = moment
        with pytest.raises(BranchFailed) as failure:
            await guard.run(dead)
        assert failure.value.target == "milvus"
        assert len(calls) == expected
    now[0] = 10
    assert await guard.run(well) == "answer"
