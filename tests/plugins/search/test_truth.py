"""Whatever the projections hold, an answer has what PostgreSQL has (design section 8)."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import strategies as st

from memplane.contracts import Scope
from memplane.errors import PluginError
from memplane.outbox.events import Truth
from memplane.plugins.search import hydrate as hydrate_module
from memplane.plugins.search import search as search_module
from memplane.projections.milvus_row import expected
from memplane.schema.times import format_time
from tests.plugins.postgres.properties import holds
from tests.plugins.search.world import NO_OPTIONS, World, branches, contents, ids

pytestmark = pytest.mark.asyncio(loop_scope="module")

WORDS = ["octopus", "reef", "brakes", "mechanic", "记忆", "数据库", "harbour", "car"]
TEXTS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join)


async def put_vector(
    world: World, memory_id: int, text: str, *, scope: Scope, version: int, expires_at: datetime | None = None
) -> None:
    """Put a row into Milvus by hand, whatever the truth says."""
    generation = await world.milvus.generation()
    [vector] = await world.embedding.embed([text], purpose="document")
    truth = Truth(memory_id, True, version, tenant=scope.tenant, user_id=scope.user, expires_at=expires_at)
    row, _ = expected(truth, generation)
    await world.milvus.milvus.call("upsert", generation.collection, [{**row, "vector": list(vector)}])
    # A strong read waits until every reader has it.
    await world.milvus.milvus.call("get", generation.collection, ids=[memory_id], consistency_level="Strong")


async def put_edge(world: World, source: int, target: int, scope: Scope) -> None:
    """Put two nodes of the scope and an edge into Neo4j by hand."""
    generation = await world.milvus.generation()
    await world.neo4j.neo4j.run(
        """
        MERGE (a:Memory {backend: $backend, memory_id: $source}) SET a.tenant = $tenant, a.user_id = $user
        MERGE (b:Memory {backend: $backend, memory_id: $target}) SET b.tenant = $tenant, b.user_id = $user
        SET a.version = 1, b.version = 1
        MERGE (a)-[:RELATES {backend: $backend, type: 'fake'}]->(b)
        """,
        {
            "backend": generation.backend,
            "source": source,
            "target": target,
            "tenant": scope.tenant,
            "user": scope.user,
        },
    )


@dataclass(frozen=True)
class History:
    """What happens to some memories, and what a hand does to the projections."""

    seed: int
    texts: list[str]
    steps: list[str]
    query: str
    limit: int


HISTORIES = st.builds(
    History,
    seed=st.integers(0, 10**6),
    texts=st.lists(TEXTS, min_size=2, max_size=6),
    steps=st.lists(
        st.sampled_from(
            ["update", "delete", "expire", "project", "stale", "orphan", "foreign", "future", "edge", "late delete"]
        ),
        max_size=8,
    ),
    query=TEXTS,
    limit=st.integers(1, 8),
)


class Play:
    """Plays a history in a scope of its own."""

    def __init__(self, world: World, history: History) -> None:
        self.world = world
        self.random = random.Random(history.seed)
        self.me = Scope("acme", f"me-{random.getrandbits(64)}")
        self.other = Scope("acme", f"other-{random.getrandbits(64)}")
        self.mine: list[str] = []
        self.foreign: list[str] = []

    async def begin(self, texts: list[str]) -> None:
        self.mine = [item["id"] for item in await self.world.write(*texts, scope=self.me)]
        self.foreign = [item["id"] for item in await self.world.write(*texts[:2], scope=self.other)]

    async def step(self, name: str) -> None:
        world, chosen = self.world, self.random.choice(self.mine)
        text = self.random.choice(WORDS)
        live = chosen in {item["id"] for item in await self.live()}
        if name == "update" and live:
            await world.update(chosen, scope=self.me, content=text)
        elif name == "delete":
            await world.delete(chosen, scope=self.me)
        elif name == "late delete":
            await world.project()
            await world.delete(chosen, scope=self.me)
        elif name == "expire" and live:
            past = format_time(datetime.now(UTC) - timedelta(seconds=1))
            await world.update(chosen, scope=self.me, metadata={"expires_at": past})
        elif name == "project":
            await world.project()
        elif name in ("stale", "future"):
            await put_vector(world, int(chosen), text, scope=self.me, version=1 if name == "stale" else 99)
        elif name == "orphan":
            await put_vector(world, 10**12 + self.random.randrange(1000), text, scope=self.me, version=1)
        elif name == "foreign":
            await put_vector(world, int(self.foreign[0]), text, scope=self.me, version=1)
        elif name == "edge":
            await put_edge(world, int(chosen), int(self.random.choice([*self.mine, *self.foreign])), self.me)

    async def live(self) -> list[Any]:
        page = await self.world.store.scoped(self.me).query({"limit": 1000}, NO_OPTIONS)
        return list(page["items"])


async def test_no_projection_can_make_a_search_lie(world: World) -> None:
    async def check(history: History) -> None:
        play = Play(world, history)
        await play.begin(history.texts)
        for name in history.steps:
            await play.step(name)
        truth = {item["id"]: item for item in await play.live()}
        for strategy in ("vector", "keyword", "graph", "hybrid"):
            hits = await world.search(history.query, scope=play.me, strategy=strategy, limit=history.limit)
            found = ids(hits)
            assert len(found) == len(set(found)) <= history.limit
            for hit in hits:
                assert hit["memory"] == truth[hit["memory"]["id"]]
                assert math.isfinite(hit["score"])
            assert [hit["score"] for hit in hits] == sorted((hit["score"] for hit in hits), reverse=True)
        everything = await world.search(history.query, scope=play.me, strategy="vector", limit=100)
        assert set(ids(everything)) <= set(truth)

    await holds(HISTORIES, check, examples=25)


async def test_a_write_is_found_before_it_is_projected(world: World) -> None:
    [old] = await world.write("the octopus in the reef")
    await world.project()
    [new] = await world.write("the octopus in the reef, again")
    for strategy in ("vector", "hybrid"):
        assert set(ids(await world.search("octopus reef", strategy=strategy))) == {old["id"], new["id"]}


async def test_the_merge_compares_exactly_and_stores_what_it_embeds(world: World) -> None:
    [item] = await world.write("the mechanic and the brakes")
    [hit] = await world.search("the mechanic and the brakes", strategy="vector")
    assert hit["score"] == pytest.approx(1, abs=1e-6)
    async with world.database.acquire() as connection:
        stored = await connection.fetchval(
            world.database.sql(
                "SELECT count(*) FROM {schema}.memory_embedding AS e JOIN {schema}.long_term_memory AS m"
                " USING (tenant, text_hash) WHERE m.id = $1"
            ),
            int(item["id"]),
        )
    assert stored == 1
    await world.project()
    [after] = await world.search("the mechanic and the brakes", strategy="vector")
    assert after["score"] == pytest.approx(hit["score"], abs=1e-5)


async def test_a_stale_vector_is_replaced_by_the_fresh_one(world: World) -> None:
    moved, stays = await world.write("octopus reef harbour", "octopus reef")
    await world.project()
    await world.update(moved["id"], content="brakes mechanic car")
    hits = await world.search("octopus reef harbour", strategy="vector")
    assert ids(hits) == [stays["id"], moved["id"]]
    assert hits[1]["memory"]["version"] == 2
    assert hits[1]["score"] < 0.3


async def test_a_stale_vector_without_an_event_is_compared_again(world: World) -> None:
    moved, stays = await world.write("brakes mechanic car", "octopus reef")
    await world.update(moved["id"], content="brakes and mechanics")
    await world.project()
    await put_vector(world, int(moved["id"]), "octopus reef harbour", scope=world.me, version=1)
    hits = await world.search("octopus reef harbour", strategy="vector")
    assert ids(hits) == [stays["id"], moved["id"]]
    assert hits[1]["score"] < 0.3


async def test_just_processed_events_still_count(world: World) -> None:
    """The search in Milvus may have begun before an event took effect that is finished when PostgreSQL is asked."""
    [item] = await world.write("harbour harbour")
    async with world.database.acquire() as connection:
        await connection.execute(
            world.database.sql(
                "UPDATE {schema}.memory_outbox SET status = 'processed', processed_at = clock_timestamp()"
                " WHERE aggregate_id = $1"
            ),
            int(item["id"]),
        )
    assert ids(await world.search("harbour", strategy="vector")) == [item["id"]]


async def test_the_merge_is_bounded_and_takes_the_newest(world: World) -> None:
    for number in range(6):
        await world.write(f"harbour {number}")
    backend = world.search_backend(unfinished=3)
    found = contents(await world.search("harbour", strategy="vector", backend=backend))
    assert sorted(found) == ["harbour 3", "harbour 4", "harbour 5"]


async def test_dead_hits_are_refilled(world: World) -> None:
    best = await world.write(*(f"octopus reef {number}" for number in range(30)))
    rest = await world.write(*(f"octopus {word}" for word in ("car", "brakes", "mechanic")))
    await world.project()
    await world.delete(*(item["id"] for item in best))
    # As if Milvus had lost those deletes.
    async with world.database.acquire() as connection:
        await connection.execute(
            world.database.sql(
                "UPDATE {schema}.memory_outbox SET status = 'processed',"
                " processed_at = now() - interval '1 hour' WHERE status = 'pending'"
            )
        )
    for strategy in ("vector", "hybrid"):
        hits = await world.search("octopus reef", strategy=strategy, limit=3)
        assert set(ids(hits)) == {item["id"] for item in rest}


async def test_refills_end_after_three_rounds(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(12):
        await put_vector(world, 10**13 + number, "octopus", scope=world.me, version=1)
    monkeypatch.setattr(search_module, "SLACK", 0)
    monkeypatch.setattr(search_module, "GROWTH", 1)
    backend = world.search_backend()
    asked: list[int] = []
    read = backend.branches.hydration.read

    async def counted(scope: Scope, wanted: Any, filter: Any) -> Any:
        asked.append(len(wanted))
        return await read(scope, wanted, filter)

    monkeypatch.setattr(backend.branches.hydration, "read", counted)
    assert await world.search("octopus", strategy="vector", limit=1, backend=backend) == []
    assert len(asked) == 1 + search_module.REFILLS


async def test_expired_memories_go_without_an_event(world: World) -> None:
    later = format_time(datetime.now(UTC) + timedelta(hours=1))
    [item] = await world.write({"content": "harbour for a moment", "metadata": {"expires_at": later}})
    await world.project()
    assert ids(await world.search("harbour")) == [item["id"]]
    async with world.database.acquire() as connection:
        # As if the hour had passed: the projections still believe in it.
        past = "UPDATE {schema}.long_term_memory SET expires_at = now() - interval '1 second' WHERE id = $1"
        await connection.execute(world.database.sql(past), int(item["id"]))
    for strategy in ("vector", "keyword", "hybrid"):
        assert await world.search("harbour", strategy=strategy) == []


async def test_an_answer_that_would_fill_the_process_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hydrate_module, "MAX_BYTES", 1000)
    monkeypatch.setattr(hydrate_module, "UNMEASURED", 2)
    await world.write(*(f"reef {'x' * 400} {number}" for number in range(6)))
    monkeypatch.setattr(search_module, "SLACK", 1)
    assert len(await world.search("reef", strategy="keyword", limit=1)) == 1
    with pytest.raises(PluginError, match="limit is too large") as error:
        await world.search("reef", strategy="keyword", limit=6)
    assert error.value.code == "INVALID_INPUT"


async def test_hits_say_which_branches_found_them(world: World) -> None:
    await world.write("octopus one", "octopus two", "car three")
    await world.project()
    for hit in await world.search("octopus"):
        for entry in branches(hit).values():
            assert entry["rank"] >= 1
            assert math.isfinite(entry["score"])
