"""The filter of SEARCH means what the filter of QUERY means, whatever Milvus makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memplane.errors import PluginError
from memplane.outbox.events import Target
from memplane.plugins.search import vector as vector_module
from memplane.plugins.search.milvus_filter import MAX_CONDITIONS, to_milvus
from memplane.projections.embedding import StoredEmbeddings
from memplane.projections.milvus import MilvusProjection
from memplane.projections.milvus_client import MilvusConnection
from memplane.retrieval.filters import matches, parse_filter
from memplane.settings import MilvusSettings
from tests.plugins.postgres.properties import holds
from tests.plugins.postgres.test_query import FILTERS, METADATA
from tests.plugins.search.conftest import embed
from tests.plugins.search.world import NO_OPTIONS, World, ids

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def varied_memories(world: World) -> list[Any]:
    examples: list[dict[str, Any]] = []

    async def collect(drawn: dict[str, Any]) -> None:
        examples.append(drawn)

    await holds(METADATA, collect, examples=50)
    extra: list[dict[str, Any]] = [
        {"a": "line\nbreak"},
        {"a": 'quo"te\\'},
        {"a": 2**53 + 1},
        {"a": 2**64 - 1},
        {"a": {"0": 1}},
        {"a": [1]},
        {"a/b": 1},
        {"a": None},
        {"a": [1, 1.5, True, "x", None]},
    ]
    await world.write(*({"content": "common", "metadata": drawn} for drawn in [*examples, *extra]))
    [keyed] = await world.write({"content": "common keyed", "key": "k1"})
    await world.update(keyed["id"], content="common, second version")
    page = await world.store.scoped(world.me).query({"limit": 1000}, NO_OPTIONS)
    return page["items"]


MORE = [
    {"a": "line\nbreak"},
    {"a": 'quo"te\\'},
    {"a": {"$gt": 2**53}},
    {"a": {"$gte": 2**53 - 1}},
    {"a": {"$lt": 5}},
    {"a": {"$in": [1, "x", True, 2.5]}},
    {"a": {"$contains": 1}},
    {"a": {"$contains": 1.0}},
    {"a": {"$contains": True}},
    {"a.0": 1},
    {"a/b": 1},
    {"a": {"$exists": True}},
    {"a": {"$exists": False}},
    {"$not": {"a": {"$gt": 0}}},
    {"version": {"$gt": 1}},
    {"version": {"$lte": 1.5}},
    {"key": "k1"},
]


async def test_search_agrees_with_query(world: World) -> None:
    items = await varied_memories(world)
    await world.project()

    async def check(document: dict[str, Any]) -> None:
        expected = {item["id"] for item in items if matches(parse_filter(document), item)}
        for strategy in ("vector", "keyword"):
            hits = await world.search("common", strategy=strategy, limit=1000, filter=document)
            assert set(ids(hits)) == expected

    for document in MORE:
        await check(document)
    await holds(FILTERS, check, examples=150)


async def test_search_agrees_with_query_before_projection(world: World) -> None:
    items = await varied_memories(world)

    async def check(document: dict[str, Any]) -> None:
        expected = {item["id"] for item in items if matches(parse_filter(document), item)}
        assert set(ids(await world.search("common", strategy="vector", limit=1000, filter=document))) == expected

    await holds(FILTERS, check, examples=40)


@pytest.mark.parametrize("lite", [False, True])
async def test_expressions_keep_no_match_away(world: World, tmp_path: Path, lite: bool) -> None:
    """Milvus' own answer, without the check in PostgreSQL: nothing missing; on a server also nothing too much."""
    items = await varied_memories(world)
    projection = world.milvus
    if lite:
        settings = MilvusSettings(uri=str(tmp_path / "lite.db"))
        embeddings = StoredEmbeddings(world.database, world.embedding, embed)
        projection = MilvusProjection(world.database, MilvusConnection(settings), embeddings)
        async with world.database.acquire() as connection:
            await connection.execute(
                world.database.sql(
                    "UPDATE {schema}.memory_outbox SET status = 'pending'"
                    " WHERE target = 'milvus' AND superseded_by IS NULL AND user_id = $1"
                ),
                world.me.user,
            )
        await world.drain(projection)
    await world.project(Target.MILVUS)
    generation = await projection.generation()

    async def check(document: dict[str, Any]) -> None:
        expression = to_milvus(parse_filter(document), lite=lite)
        if expression is None:
            return
        rows = await projection.milvus.call(
            "query",
            generation.collection,
            filter=f'user_id == "{world.me.user}" and ({expression})',
            output_fields=["memory_id"],
            limit=1000,
        )
        found = {str(row["memory_id"]) for row in rows}
        expected = {item["id"] for item in items if matches(parse_filter(document), item)}
        assert expected <= found
        if not lite and ".0" not in str(document):
            assert found == expected

    for document in MORE:
        await check(document)
    await holds(FILTERS, check, examples=150)
    if lite:
        await projection.close()


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({}, "(memory_id >= 0)"),
        ({"state": "open"}, '(metadata["state"] == "open")'),
        ({"a.b": {"$gt": 1}}, '(metadata["a"]["b"] > 1)'),
        ({"state": {"$in": ["a", "b"]}}, '(metadata["state"] in ["a", "b"])'),
        ({"n": {"$in": [1, True]}}, '(metadata["n"] == 1 or metadata["n"] == true)'),
        ({"n": {"$in": []}}, "(memory_id < 0)"),
        ({"tags": {"$contains": "x"}}, '(json_contains(tags["values"], "x"))'),
        ({"tags": {"$contains": 1}}, "(memory_id < 0)"),
        ({"category": {"$ne": "x"}}, '(not (category in ["x"]))'),
        ({"id": {"$in": ["7", "007", 7]}}, "(memory_id in [7])"),
        ({"importance": {"$lt": 0.5}}, "(importance < 0.5 and importance >= 0.0)"),
        ({"version": {"$gt": 1.5}}, "(version > 1)"),
        ({"version": {"$lt": 1.5}}, "(version < 2)"),
        ({"version": {"$lt": 10**30}}, "(memory_id >= 0)"),
        ({"expires_at": {"$gt": "1970-01-01T00:00:01Z"}}, "(expires_at > 1000000 and expires_at != -1)"),
        ({"v": 'a"b\\c\nd'}, '(metadata["v"] == "a\\"b\\\\c\\nd")'),
        ({"v": "\x01"}, None),
        ({"v": None}, None),
        ({"v": [1]}, None),
        ({"v": 2**60}, None),
        ({'v"]': 1}, None),
        ({"key": "k"}, None),
        ({"createdAt": {"$gt": "2020-01-01T00:00:00Z"}}, None),
        ({"$or": [{"a": n} for n in range(MAX_CONDITIONS + 1)]}, None),
        ({"$and": [{"a": 1}, {"key": "k"}]}, None),
    ],
)
async def test_expressions(document: dict[str, Any], expected: str | None) -> None:
    assert to_milvus(parse_filter(document)) == expected


@pytest.mark.parametrize(
    "document", [{"n": {"$ne": 1}}, {"$not": {"n": {"$gt": 1}}}, {"n": {"$exists": True}}, {"$not": {"a.0": 1}}]
)
async def test_lite_says_nothing_about_absent_fields(document: dict[str, Any]) -> None:
    assert to_milvus(parse_filter(document), lite=True) is None


async def test_a_filter_that_selects_too_much_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_module, "MAX_SELECTED", 2)
    await world.write(*({"content": f"note {n}", "key": f"k{n}"} for n in range(3)))
    await world.project()
    wide = {"key": {"$gt": ""}}
    with pytest.raises(PluginError, match="selects more than 2") as error:
        await world.search("note", filter=wide)
    assert error.value.code == "UNSUPPORTED_FILTER"
    assert len(await world.search("note", filter=wide, strategy="keyword")) == 3
    narrow = {"key": {"$gt": "k0"}}
    assert len(await world.search("note", filter=narrow, strategy="vector")) == 2


async def test_malformed_filters_are_refused(world: World) -> None:
    with pytest.raises(PluginError, match="unknown operator") as error:
        await world.search("x", filter={"a": {"$regex": ".*"}})
    assert error.value.code == "UNSUPPORTED_FILTER"
