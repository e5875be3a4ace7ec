"""What only this store can get wrong: large contents, ids and keys across processes, filters that Milvus bends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from tests.plugins.milvus.conftest import new_backend

from memplane.contracts import CallOptions, Scope
from memplane.errors import IdentityError, PluginError, SettingsError
from memplane.nodes import Memory, create_memory
from memplane.plugins.milvus import reads, rows
from memplane.plugins.milvus.backend import MilvusBackend
from memplane.plugins.registry import Resources, create_store
from memplane.settings import MilvusSettings
from memplane.signal import Signal

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def other(milvus_backend: MilvusBackend, milvus_settings: MilvusSettings) -> AsyncIterator[MilvusBackend]:
    """The same collection as another process sees it: nothing is shared but the server."""
    backend = new_backend(milvus_settings, milvus_backend.collection.name)
    await backend.start()
    yield backend
    await backend.close()


@pytest.fixture
def scope() -> Scope:
    return Scope("acme", uuid4().hex)


@pytest.fixture
def memory(milvus_backend: MilvusBackend, scope: Scope) -> Memory:
    return create_memory(store=milvus_backend.scoped(scope))


async def found(memory: Memory, **request: Any) -> list[Any]:
    return [item["content"] for item in (await memory.query(request)).unwrap()["items"]]


@pytest.mark.parametrize("character", ["a", "é", "中", "🜚"])
async def test_texts_are_cut_between_characters_only(character: str) -> None:
    for prefix in range(4):
        text = "x" * prefix + character * (2**20 // len(character.encode()) - 4)
        parts = rows.pieces(text, len(rows.CONTENT_FIELDS))
        assert "".join(parts) == text
        assert max(len(part.encode()) for part in parts) <= 65_535


async def test_a_large_content_is_one_row_that_updates_and_goes_as_one(
    memory: Memory, milvus_backend: MilvusBackend, scope: Scope
) -> None:
    text = "中" * (2**20 // 3 - 10)
    [item] = (await memory.write({"memories": [{"content": text, "metadata": {"n": 1}}]})).unwrap()
    await memory.update({"memories": [{"id": item["id"], "metadata": {"n": 2}}]})
    [read] = (await memory.get({"ids": [item["id"]]})).unwrap()
    assert (read["content"], read["metadata"]) == (text, {"n": 2})
    await memory.update({"memories": [{"id": item["id"], "content": "short"}]})
    assert await found(memory) == ["short"]
    await memory.delete({"ids": [item["id"]]})
    assert await milvus_backend.collection.find_ids(scope, [int(item["id"])], live=False) == {}


async def test_processes_draw_different_ids(milvus_backend: MilvusBackend, other: MilvusBackend) -> None:
    drawn = await asyncio.gather(
        *(backend.collection.draw(100) for backend in (milvus_backend, other) for _ in range(8))
    )
    numbers = [number for batch in drawn for number in batch]
    assert len(set(numbers)) == len(numbers)
    assert all(batch == sorted(batch) for batch in drawn)


async def test_of_two_processes_at_most_one_gets_a_key(
    milvus_backend: MilvusBackend, other: MilvusBackend, scope: Scope
) -> None:
    writers = [create_memory(store=backend.scoped(scope)) for backend in (milvus_backend, other)]
    for number in range(6):
        draft = {"memories": [{"key": f"k{number}", "content": number}]}
        results = await asyncio.gather(*(writer.write(draft) for writer in writers))
        winners = [result for result in results if result.error is None]
        assert len(winners) <= 1
        assert {result.error.code for result in results if result.error is not None} <= {"CONFLICT"}
        read = (await writers[0].get({"keys": [f"k{number}"]})).unwrap()
        assert [item["id"] for item in read] == [item["id"] for result in winners for item in result.unwrap()]


async def test_another_process_sees_at_once_what_one_wrote(
    milvus_backend: MilvusBackend, other: MilvusBackend, scope: Scope
) -> None:
    one, two = (create_memory(store=backend.scoped(scope)) for backend in (milvus_backend, other))
    [item] = (await one.write({"memories": [{"key": "k", "content": 0}]})).unwrap()
    for number in range(1, 4):
        writer, reader = (one, two) if number % 2 else (two, one)
        [changed] = (await writer.update({"memories": [{"id": item["id"], "content": number}]})).unwrap()
        assert (await reader.get({"keys": ["k"]})).unwrap() == [changed]


async def test_filters_see_what_milvus_cannot_hold_as_it_is(memory: Memory) -> None:
    metadata: list[dict[str, Any]] = [
        {"n": 10**400},
        {"n": 2**53 + 1},
        {"n": 2**53},
        {"n": 7, "fill": "x" * 64_000},
        {"n": 7},
        {"n": "7"},
    ]
    await memory.write({"memories": [{"content": n, "metadata": data} for n, data in enumerate(metadata)]})
    assert await found(memory, filter={"n": {"$gt": 5}}) == [0, 1, 2, 3, 4]
    assert await found(memory, filter={"n": 2**53 + 1}) == [1]
    assert await found(memory, filter={"n": {"$gt": 2**53}}) == [0, 1]
    assert await found(memory, filter={"n": 7}) == [3, 4]
    assert await found(memory, filter={"$not": {"n": 7}}) == [0, 1, 2, 5]


async def test_other_orders_are_bounded(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "WINDOW", 4)
    monkeypatch.setattr(reads, "MAX_SORTED", 8)
    monkeypatch.setattr("memplane.plugins.milvus.collection.WINDOW", 4)
    await memory.write({"memories": [{"content": n} for n in range(30)]})
    result = await memory.query({"orderBy": [{"field": "updatedAt"}]})
    assert result.error is not None
    assert result.error.code == "UNSUPPORTED_ORDER"


async def test_search_takes_vectors_and_every_filter(memory: Memory, milvus_backend: MilvusBackend) -> None:
    drafts = [{"content": f"otters in river {n}", "metadata": {"n": n, "list": [[n]]}} for n in range(12)]
    await memory.write({"memories": drafts})
    [vector] = await milvus_backend.collection.embedding.embed(["otters in river 3"], purpose="query")
    hits = (await memory.search({"query": {"vector": list(vector)}, "limit": 1})).unwrap()
    assert hits[0]["memory"]["content"] == "otters in river 3"
    assert hits[0]["score"] == pytest.approx(1, abs=1e-4)
    # Milvus cannot compare arrays; the memories are selected first.
    hits = (await memory.search({"query": "otters", "filter": {"list": {"$contains": [5]}}})).unwrap()
    assert [hit["memory"]["metadata"]["n"] for hit in hits] == [5]
    wrong = await memory.search({"query": {"vector": [1.0, 2.0]}})
    assert wrong.error is not None
    assert wrong.error.code == "INVALID_INPUT"


async def test_vectors_of_another_model_are_refused(
    milvus_backend: MilvusBackend, milvus_settings: MilvusSettings
) -> None:
    backend = new_backend(milvus_settings, milvus_backend.collection.name, dimensions=32)
    with pytest.raises(IdentityError):
        await backend.start()
    await backend.close()


async def test_a_cancelled_write_has_happened_or_not_when_its_caller_goes_on(memory: Memory) -> None:
    for delay in (0.0, 0.001, 0.005, 0.02):
        task = asyncio.create_task(memory.write({"memories": [{"key": "k", "content": 1}]}))
        await asyncio.sleep(delay)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        read = (await memory.get({"keys": ["k"]})).unwrap()
        assert (await memory.delete({"ids": [item["id"] for item in read]})).unwrap()["deleted"] or not read
        assert (await memory.get({"keys": ["k"]})).unwrap() == []


async def test_an_aborted_signal_changes_nothing(milvus_backend: MilvusBackend, scope: Scope) -> None:
    signal = Signal()
    signal.abort(KeyError("enough"))
    store = milvus_backend.scoped(scope)
    for work in (
        store.write({"memories": [{"content": 1}]}, CallOptions(signal)),
        store.query({"limit": 1}, CallOptions(signal)),
    ):
        with pytest.raises(KeyError, match="enough"):
            await work
    assert (await store.query({"limit": 1}, CallOptions()))["items"] == []


class Failing:
    model, revision, dimensions = "m", "1", 8

    async def embed(self, contents: Sequence[str], **_: object) -> Sequence[Sequence[float]]:
        raise RuntimeError("token=open-sesame")


async def test_servers_and_models_that_are_away_say_so_without_their_text() -> None:
    options = {"milvus": {"uri": "http://127.0.0.1:1", "timeout": 1}}
    backend = create_store("milvus", options, Resources(embedding=Failing()))
    store = backend.scoped(Scope("a", "b"))
    for work in (
        store.write({"memories": [{"content": "x"}]}, CallOptions()),
        store.query({"limit": 1}, CallOptions()),
    ):
        with pytest.raises(PluginError) as raised:
            await work
        assert raised.value.code == "STORE_UNAVAILABLE"
        assert "sesame" not in f"{raised.value}{raised.value.__cause__}"
    await backend.close()


async def test_it_needs_a_server_and_a_model() -> None:
    with pytest.raises(SettingsError, match="embedding"):
        create_store("milvus", {"milvus": {"uri": "http://127.0.0.1:1"}}, Resources())
    for options in ({}, {"milvus": {"uri": "file.db"}}):
        with pytest.raises(SettingsError):
            create_store("milvus", options, Resources(embedding=Failing()))
