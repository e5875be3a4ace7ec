"""What each strategy finds, and what its hits say."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from memplane.errors import PluginError
from memplane.projections.embedding import StoredEmbeddings
from memplane.projections.milvus import MilvusProjection
from memplane.projections.milvus_client import MilvusConnection
from memplane.settings import MilvusSettings
from tests.plugins.search.conftest import embed
from tests.plugins.search.world import World, branches, contents, ids

pytestmark = pytest.mark.asyncio(loop_scope="module")

SEA = "The octopus hides in a coral reef near the harbour"
CAR = "The mechanic replaced the brakes of the old car"
CHINESE = "我们使用向量数据库保存长期记忆"


async def test_vector_ranks_by_cosine(world: World) -> None:
    await world.write(SEA, CAR, CHINESE)
    await world.project()
    hits = await world.search("an octopus in a reef", strategy="vector", limit=2)
    assert contents(hits)[0] == SEA
    assert len(hits) == 2
    assert 0 < hits[1]["score"] < hits[0]["score"] <= 1
    assert branches(hits[0]) == {"vector": {"rank": 1, "score": hits[0]["score"]}}


async def test_a_vector_may_be_given_instead_of_a_text(world: World) -> None:
    await world.write(SEA, CAR)
    await world.project()
    [vector] = await world.embedding.embed([CAR], purpose="query")
    [hit] = await world.search({"vector": [1000 * value for value in vector]}, strategy="vector", limit=1)
    assert hit["memory"]["content"] == CAR
    assert math.isclose(hit["score"], 1, abs_tol=1e-5)


async def test_milvus_lite_answers_like_a_server(world: World, tmp_path: Path) -> None:
    items = await world.write({"content": SEA, "metadata": {"n": 1}}, {"content": CAR, "metadata": {"n": 2}})
    lite = MilvusConnection(MilvusSettings(uri=str(tmp_path / "lite.db")))
    embeddings = StoredEmbeddings(world.database, world.embedding, embed)
    projection = MilvusProjection(world.database, lite, embeddings)
    await world.drain(projection)
    backend = world.search_backend(milvus=lite, unfinished=0)
    hits = await world.search("an octopus in a reef", strategy="vector", backend=backend)
    assert ids(hits) == [item["id"] for item in items]
    only = await world.search("an octopus", strategy="vector", backend=backend, filter={"n": {"$gt": 1}})
    assert ids(only) == [items[1]["id"]]
    absent = await world.search("an octopus", strategy="vector", backend=backend, filter={"n": {"$ne": 1}})
    assert ids(absent) == [items[1]["id"]]
    await projection.close()


async def test_keyword_finds_chinese(world: World) -> None:
    await world.write(SEA, CHINESE)
    [hit] = await world.search("数据库", strategy="keyword")
    assert hit["memory"]["content"] == CHINESE
    assert branches(hit) == {"keyword": {"rank": 1, "score": hit["score"]}}


async def test_graph_follows_relations_of_the_best(world: World) -> None:
    [ship] = await world.write("A ship called Aurora")
    [captain] = await world.write(
        {"content": "Its captain", "metadata": {"relations": [{"type": "commands", "target": ship["id"]}]}}
    )
    [dog] = await world.write(
        {"content": "A dog", "metadata": {"relations": [{"type": "owned_by", "target": captain["id"]}]}}
    )
    await world.project()
    near = await world.search("Aurora ship", strategy="graph", options={"graph": {"seeds": [ship["id"]]}})
    assert ids(near) == [ship["id"], captain["id"]]
    far = await world.search("Aurora", strategy="graph", options={"graph": {"seeds": [ship["id"]], "depth": 2}})
    assert ids(far) == [ship["id"], captain["id"], dog["id"]]
    assert [hit["score"] for hit in far] == [1, 0.5, 0.25]
    typed = {"graph": {"seeds": [ship["id"]], "depth": 2, "types": ["owned_by"]}}
    assert ids(await world.search("Aurora", strategy="graph", options=typed)) == [ship["id"]]
    found = await world.search("Aurora", strategy="graph", limit=3)
    assert {ship["id"], captain["id"]} <= set(ids(found))


async def test_hybrid_fuses_what_the_branches_found(world: World) -> None:
    [ship] = await world.write(SEA)
    [diver] = await world.write(
        {"content": "unlike words", "metadata": {"relations": [{"type": "saw", "target": ship["id"]}]}}
    )
    await world.write(CAR)
    await world.project()
    hits = await world.search("octopus", options={"graph": {"seeds": [ship["id"]]}})
    assert hits[0]["memory"]["id"] == ship["id"]
    assert set(branches(hits[0])) == {"vector", "keyword"}
    by_id = {hit["memory"]["id"]: hit for hit in hits}
    assert branches(by_id[diver["id"]])["graph"] == {"rank": 1, "score": 0.5, "weight": 0.5}
    for hit in hits:
        expected = sum(entry["weight"] / (60 + entry["rank"]) for entry in branches(hit).values())
        assert math.isclose(hit["score"], expected, rel_tol=1e-9)


async def test_weights_and_k_are_options(world: World) -> None:
    await world.write(SEA, CAR)
    await world.project()
    options = {"weights": {"vector": 2, "keyword": 3}, "rrfK": 1, "pool": 5}
    hits = await world.search("octopus", options=options)
    assert branches(hits[0])["keyword"]["weight"] == 3
    assert math.isclose(hits[0]["score"], 2 / 2 + 3 / 2, rel_tol=1e-9)


async def test_nobody_sees_another_scope(world: World) -> None:
    await world.write("the code of the safe is 1234", scope=world.other)
    [mine] = await world.write("the code of the door")
    await world.project()
    for strategy in ("vector", "keyword", "hybrid"):
        assert ids(await world.search("code of the safe", strategy=strategy)) == [mine["id"]]
    [foreign] = await world.search("safe", scope=world.other, strategy="keyword")
    seeds = {"graph": {"seeds": [foreign["memory"]["id"]]}}
    assert await world.search("safe", scope=world.me, strategy="graph", options=seeds) == []


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
@pytest.mark.parametrize("strategy", ["vector", "keyword", "hybrid"])
async def test_the_limit_is_exact(world: World, strategy: str, limit: int) -> None:
    await world.write(*(f"note number {number}" for number in range(5)))
    await world.project()
    hits = await world.search("note number", strategy=strategy, limit=limit)
    assert len(hits) == min(limit, 5)
    assert len(set(ids(hits))) == len(hits)


async def test_unknown_strategies_are_told_the_known(world: World) -> None:
    with pytest.raises(PluginError, match="vector, keyword, graph, hybrid") as error:
        await world.search("x", strategy="bm25")
    assert error.value.code == "UNSUPPORTED_STRATEGY"
    only = world.search_backend(branches=("keyword",))
    with pytest.raises(PluginError, match="known: keyword, hybrid"):
        await world.search("x", strategy="vector", backend=only)


async def test_dimensions_are_checked(world: World) -> None:
    await world.project()
    with pytest.raises(PluginError, match=r"query\.vector must have 64 numbers, not 3") as error:
        await world.search({"vector": [1, 2, 3]})
    assert error.value.code == "INVALID_INPUT"
