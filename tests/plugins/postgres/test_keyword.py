"""Keyword search on a real PostgreSQL: scripts, scope, filters, ranking, old rows."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import pytest

from memplane.contracts import Scope
from memplane.plugins.postgres import frequency, keyword
from memplane.plugins.postgres.backfill import backfill_tokens
from memplane.plugins.postgres.keyword import KeywordSearch, rarest, weights
from memplane.plugins.postgres.tokens import search_tokens
from memplane.retrieval.filters import parse_filter
from memplane.schema.database import Database

ME = Scope("tenant", "me")
OTHER = Scope("tenant", "other")

_INSERT = """
INSERT INTO {schema}.long_term_memory
    (tenant, user_id, content, text_hash, metadata, deleted_at, expires_at, search_tokens, tokens_version)
VALUES ($1, $2, $3, $4, $5, CASE WHEN $6 THEN now() END, now() + make_interval(secs => $7), $8, $9) RETURNING id
"""


async def write(
    database: Database,
    text: str,
    *,
    scope: Scope = ME,
    metadata: str | None = None,
    deleted: bool = False,
    expires_in: float | None = None,
    tokenized: bool = True,
) -> int:
    tokens = search_tokens(scope.tenant, scope.user, text) if tokenized else None
    async with database.acquire() as connection:
        memory_id: int = await connection.fetchval(
            database.sql(_INSERT),
            scope.tenant,
            scope.user,
            text,
            sha256(text.encode()).digest(),
            metadata,
            deleted,
            expires_in,
            tokens,
            int(tokenized),
        )
    return memory_id


async def found(database: Database, text: str, *, limit: int = 10, scope: Scope = ME) -> list[int]:
    return [hit.memory_id for hit in await KeywordSearch(database).search(scope, text, limit=limit)]


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("The Eiffel tower is in Paris.", "PARIS"),
        ("我们使用向量数据库保存长期记忆", "数据库"),
        ("我们使用向量数据库保存长期记忆", "记"),
        ("明日は東京タワーに行きます", "東京"),
        ("어제 한국어를 배웠다", "한국어"),
        ("वह हिन्दी में लिखता है", "हिन्दी"),
        ("Die Straße ist lang", "STRASSE"),
        ("ไปเที่ยวเชียงใหม่", "เชียงใหม่"),
    ],
)
async def test_finds_words_of_any_script(database: Database, text: str, question: str) -> None:
    memory_id = await write(database, text)
    await write(database, "something else altogether, 另外一件事, 他のこと, 다른 것")
    assert await found(database, question) == [memory_id]


async def test_sees_live_memories_of_its_scope_alone(database: Database) -> None:
    mine = await write(database, "a secret about bees")
    await write(database, "a secret about bees", scope=OTHER)
    await write(database, "a secret about bees", scope=Scope("another", ME.user))
    await write(database, "a secret about bees", deleted=True)
    await write(database, "a secret about bees", expires_in=-1)
    lasting = await write(database, "a secret about bees and wasps", expires_in=3600)
    assert await found(database, "bees secret") == [mine, lasting]
    assert await found(database, "bees", scope=Scope("tenant", "nobody")) == []


async def test_rare_words_and_short_memories_rank_first(database: Database) -> None:
    for number in range(20):
        await write(database, f"common common words number {number}")
    long = await write(database, "common zebra " + " ".join(f"filler{number}" for number in range(60)))
    short = await write(database, "common zebra")
    ranked = await KeywordSearch(database).search(ME, "common zebra", limit=5)
    assert [hit.memory_id for hit in ranked[:2]] == [short, long]
    assert len(ranked) == 5
    scores = [hit.score for hit in ranked]
    assert scores == sorted(scores, reverse=True)
    assert scores[-1] > 0


async def test_equal_scores_go_by_id_and_the_limit_is_exact(database: Database) -> None:
    ids = [await write(database, "the same words") for _ in range(7)]
    assert await found(database, "words", limit=4) == ids[:4]
    assert await found(database, "words", limit=100) == ids


async def test_a_filter_is_part_of_the_statement(database: Database) -> None:
    await write(database, "tea with milk", metadata='{"kind": "drink", "n": 1}')
    wanted = await write(database, "tea without milk", metadata='{"kind": "drink", "n": 2}')
    hits = await KeywordSearch(database).search(
        ME, "tea", limit=1, filter=parse_filter({"n": {"$gt": 1}, "kind": "drink"})
    )
    assert [hit.memory_id for hit in hits] == [wanted]


@pytest.mark.parametrize("question", ["…", "🙂", "' | !(&", "%_", "nothing holds this"])
async def test_questions_without_an_answer(database: Database, question: str) -> None:
    await write(database, "some text")
    assert await found(database, question) == []


async def test_rows_without_lexemes_are_filled_in(database: Database) -> None:
    old = [await write(database, f"old memory {number}", tokenized=False) for number in range(5)]
    gone = await write(database, "old memory, deleted", tokenized=False, deleted=True)
    assert await found(database, "memory") == []
    assert await backfill_tokens(database, batches=1, batch_size=2) == 2
    assert await backfill_tokens(database, batch_size=2) == 3
    assert await backfill_tokens(database) == 0
    assert await found(database, "memory") == old
    async with database.acquire() as connection:
        version = "SELECT tokens_version FROM {schema}.long_term_memory WHERE id = $1"
        assert await connection.fetchval(database.sql(version), gone) == 0


async def test_a_word_that_is_everywhere_ranks_the_newest(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyword, "CANDIDATES", 5)
    monkeypatch.setattr(keyword, "CROWDED", 5)
    ids = [await write(database, "everywhere") for _ in range(12)]
    hits = await found(database, "everywhere", limit=3)
    assert hits == ids[-5:][:3]
    assert set(await found(database, "everywhere", limit=12)) == set(ids)


async def test_of_common_words_those_that_meet_are_candidates(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyword, "CANDIDATES", 3)
    monkeypatch.setattr(keyword, "CROWDED", 3)
    both = await write(database, "tea and milk")
    for _ in range(6):
        await write(database, "tea alone")
        await write(database, "milk, milk alone")
    assert (await found(database, "tea milk", limit=1)) == [both]
    assert len(await found(database, "tea milk", limit=5)) == 5


async def test_common_words_are_known_from_statistics(database: Database) -> None:
    for number in range(50):
        await write(database, f"shared w{number}")
    async with database.acquire() as connection:
        await connection.execute(database.sql("ANALYZE {schema}.long_term_memory"))
        frequencies = frequency.Frequencies(database)
        shared, rare = (search_tokens(ME.tenant, ME.user, word).strip("'") for word in ("shared", "w7"))
        size, numbers = await frequencies.of(connection, ME, [shared, rare])
    assert size == 50
    assert numbers[shared] == pytest.approx(50, rel=0.1)
    assert numbers[rare] == pytest.approx(1, abs=0.5)


async def test_counts_are_remembered_for_a_while(database: Database) -> None:
    now = [0.0]
    frequencies = frequency.Frequencies(database, clock=lambda: now[0])
    lexeme = search_tokens(ME.tenant, ME.user, "pear").strip("'")

    async def count() -> float:
        async with database.acquire() as connection:
            return (await frequencies.of(connection, ME, [lexeme]))[1][lexeme]

    await write(database, "pear")
    assert await count() == 1
    await write(database, "pear")
    assert await count() == 1
    now[0] = frequency.REMEMBERED_SECONDS + 1
    assert await count() == 2


@pytest.mark.parametrize(
    ("holders", "needed", "expected"),
    [
        ({"a": 3, "b": 1, "c": 100}, 10, ["b", "a"]),
        ({"a": 0, "b": 0}, 10, []),
        ({"a": 5000, "b": 6000}, 10, ["a"]),
        ({"b": 2, "a": 2, "c": 0}, 4, ["a", "b"]),
    ],
)
def test_candidates_come_from_the_rarest_words(holders: dict[str, float], needed: int, expected: Sequence[str]) -> None:
    assert rarest(list(holders), holders, needed) == expected


def test_rarer_words_weigh_more() -> None:
    idf = weights(5000, {"rare": 1, "some": 50, "many": 4000, "huge": 90_000, "none": 0})
    assert idf["rare"] > idf["some"] > idf["many"] > idf["huge"] > 0
    assert "none" not in idf
