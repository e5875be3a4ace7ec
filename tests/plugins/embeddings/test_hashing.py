"""The offline provider: deterministic, unit length, usable across languages."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplane.plugins.embeddings.hashing import HashingEmbedding, HashingSettings, embed_text, features, plugin
from memplane.plugins.registry import Resources, create_embedding
from memplane.retrieval import embed_contents
from memplane.signal import Signal, SignalAborted


def cosine(left: str, right: str) -> float:
    return sum(a * b for a, b in zip(embed_text(left, 384), embed_text(right, 384), strict=True))


def test_name_and_length_of_the_vector_space_follow_the_settings() -> None:
    provider = HashingEmbedding(HashingSettings(dimensions=64, max_characters=100))
    assert (provider.model, provider.revision, provider.dimensions) == ("hashing-64-100", "1", 64)
    assert HashingEmbedding().dimensions == 384


async def test_vectors_are_pinned() -> None:
    # The same text must give the same vector on every machine and release; a change needs another revision.
    [vector] = await HashingEmbedding(HashingSettings(dimensions=8)).embed(["memory 记忆"], purpose="document")
    assert [round(value, 4) for value in vector] == [0.7071, -0.2357, 0.2357, -0.2357, -0.4714, 0.2357, 0.0, 0.2357]


def test_another_process_with_another_hash_seed_agrees() -> None:
    program = (
        "from memplane.plugins.embeddings.hashing import embed_text; print(embed_text('Grüße aus 北京', 16).tolist())"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert outputs == {f"{embed_text('Grüße aus 北京', 16).tolist()}\n"}


@given(st.text(max_size=200))
def test_every_text_has_a_unit_vector(text: str) -> None:
    vector = embed_text(text, 32)
    assert len(vector) == 32
    assert math.isclose(math.fsum(value * value for value in vector), 1.0, rel_tol=1e-4)


@pytest.mark.parametrize(
    ("query", "near", "far"),
    [
        ("preferred language", "The user's preferred language is German", "Shipping takes three days to Oslo"),
        ("用户喜欢的语言", "用户的首选语言是中文", "快递三天后到达上海"),
        ("発送の状況", "発送状況を確認しました", "好きな食べ物は寿司です"),
        ("connection pools", "the connection pool is exhausted", "a recipe for bread"),
    ],
)
def test_shared_wording_is_near(query: str, near: str, far: str) -> None:
    assert cosine(query, near) > cosine(query, far) + 0.1


def test_case_and_width_do_not_matter() -> None:
    assert cosine("ＡＢＣ Straße", "abc STRASSE") == pytest.approx(1.0, abs=1e-5)


def test_chinese_gives_characters_and_pairs_and_words_give_grams() -> None:
    assert list(features("记忆库")) == ["记", "忆", "库", "记忆", "忆库"]
    assert list(features("Ab")) == ["ab", "^ab", "ab$", "^ab$"]


async def test_text_beyond_the_limit_is_cut() -> None:
    provider = HashingEmbedding(HashingSettings(max_characters=5))
    short, long = await provider.embed(["alpha", "alpha and much more"], purpose="document")
    assert short == long


async def test_content_that_is_no_text_is_embedded_as_sorted_json() -> None:
    left, right = await embed_contents(HashingEmbedding(), [{"a": 1, "b": "x"}, {"b": "x", "a": 1}])
    assert left == right


async def test_an_abort_stops() -> None:
    signal = Signal()
    signal.abort()
    with pytest.raises(SignalAborted):
        await HashingEmbedding().embed(["x"], purpose="query", signal=signal)


def test_it_is_registered() -> None:
    made = create_embedding("hashing", {"dimensions": 16}, Resources())
    assert made.dimensions == 16
    assert plugin.settings_model is HashingSettings
