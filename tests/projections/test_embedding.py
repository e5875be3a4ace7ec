"""Vectors are made once, checked, and kept in the truth's database."""

from __future__ import annotations

import asyncio
import hashlib
import math
from array import array
from functools import partial

import pytest

from memplane.errors import RetrievalError, TargetUnavailable
from memplane.projections.embedding import (
    MAX_CHARACTERS,
    StoredEmbeddings,
    VectorInvalid,
    checked,
    pack,
    text_to_embed,
    unpack,
)
from memplane.retrieval import embed_contents
from memplane.schema.database import Database
from tests.projections.support import Letters, stored_embeddings


def item(text: str, tenant: str = "acme") -> tuple[str, bytes, str]:
    return tenant, hashlib.sha256(text.encode()).digest(), text


async def test_vectors_come_in_order_and_are_made_once(database: Database, provider: Letters) -> None:
    embeddings = stored_embeddings(database, provider)
    first = await embeddings.vectors([item("b"), item("a"), item("b")])
    assert first == [array("f", provider.vector(text)) for text in "bab"]
    assert provider.embedded == ["b", "a"]
    again = stored_embeddings(database, provider)
    assert await again.vectors([item("a"), item("c"), item("b")]) == [
        array("f", provider.vector(text)) for text in "acb"
    ]
    assert provider.embedded == ["b", "a", "c"]


async def test_tenants_models_and_revisions_share_nothing(database: Database) -> None:
    providers = [Letters(), Letters(model="other"), Letters(revision="2")]
    for provider in providers:
        for tenant in ("acme", "rival"):
            await stored_embeddings(database, provider).vectors([item("a", tenant)])
    assert [provider.embedded for provider in providers] == [["a", "a"]] * 3


async def test_a_stored_vector_of_another_length_is_made_anew(database: Database) -> None:
    await stored_embeddings(database, Letters(8)).vectors([item("a")])
    (vector,) = await stored_embeddings(database, Letters(9)).vectors([item("a")])
    assert len(vector) == 9


async def test_a_provider_has_several_batches_in_flight_within_the_bound(database: Database, provider: Letters) -> None:
    made, flying, most = provider.embed, 0, 0

    async def slowly(contents: list[str], **options: object) -> list[list[float]]:
        nonlocal flying, most
        assert len(contents) <= 2
        flying += 1
        most = max(most, flying)
        await asyncio.sleep(0.02 * (ord(contents[0]) % 3))  # they end in another order than they began
        flying -= 1
        return await made(contents, purpose="document")

    provider.embed = slowly  # type: ignore[assignment, method-assign]
    embed = partial(embed_contents, concurrency=3)
    embeddings = StoredEmbeddings(database, provider, embed, batch_size=2, concurrency=3)
    texts = "abcdefghijklmnop"
    vectors = await embeddings.vectors([item(text) for text in texts])
    assert vectors == [array("f", provider.vector(text)) for text in texts]
    assert most == 3


async def test_a_batch_that_was_made_is_kept_when_the_next_one_fails(database: Database, provider: Letters) -> None:
    embeddings = stored_embeddings(database, provider)
    embeddings._batch_size = 2
    made = provider.embed

    async def second_batch_fails(contents: list[str], **options: object) -> list[list[float]]:
        if provider.embedded:
            raise ConnectionResetError
        return await made(contents, purpose="document")

    provider.embed = second_batch_fails  # type: ignore[assignment, method-assign]
    with pytest.raises(TargetUnavailable, match="embedding"):
        await embeddings.vectors([item(text) for text in "abcd"])
    provider.embed = made  # type: ignore[method-assign]
    await embeddings.vectors([item(text) for text in "abcd"])
    assert provider.embedded == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    "failure",
    [
        RetrievalError("RETRIEVAL_PROVIDER_UNAVAILABLE", "away"),
        RetrievalError("RETRIEVAL_TIMEOUT", "slow"),
        RetrievalError("RETRIEVAL_BACKEND_ERROR", "refused", outage=True),
    ],
)
async def test_a_provider_that_is_away_is_unavailable(
    database: Database, provider: Letters, failure: RetrievalError
) -> None:
    provider.failure = failure
    embeddings = stored_embeddings(database, provider)
    assert not await embeddings.healthy()
    with pytest.raises(TargetUnavailable, match="embedding"):
        await embeddings.vectors([item("a")])


def test_long_texts_are_cut_and_blank_ones_replaced() -> None:
    assert text_to_embed("x" * (MAX_CHARACTERS + 1)) == "x" * MAX_CHARACTERS
    assert [text_to_embed(text) for text in ("", " \n", "a")] == [".", ".", "a"]


@pytest.mark.parametrize("vector", [[1.0], [1.0, 2.0, 3.0], [math.nan, 1.0], [math.inf, 1.0], [1e39, 1.0]])
def test_nonsense_vectors_are_refused(vector: list[float]) -> None:
    with pytest.raises((VectorInvalid, OverflowError)):
        checked(vector, 2)


def test_a_vector_of_zeros_gets_an_angle() -> None:
    assert checked([0.0] * 4, 4) == array("f", [0.5] * 4)


def test_vectors_survive_storage_exactly() -> None:
    vector = array("f", [0.1, -1e-40, 3.4e38])
    assert unpack(pack(vector)) == vector
    assert pack(array("f", [1.0])) == b"\x00\x00\x80?"
