"""The tokenizer of keyword search: deterministic, for every script, safe to put into a tsvector."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplane.plugins.postgres.tokens import (
    MAX_LEXEMES,
    MAX_QUERY_TOKENS,
    MAX_WORD,
    as_tsquery,
    lexemes,
    query_tokens,
    scope_prefix,
    search_tokens,
)


def words(text: str) -> list[str]:
    return [lexeme[4:] for lexeme in lexemes("t", "u", text)]


def asked(text: str) -> list[str]:
    return [lexeme[4:] for lexeme in query_tokens("t", "u", text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello WORLD, hello!", ["hello", "world"]),
        ("snake_case-and.dots", ["snake", "case", "and", "dots"]),
        ("Straße Ｆｕｌｌ ﬁne", ["strasse", "full", "fine"]),
        ("数据库", ["数据", "据库", "数", "据", "库"]),
        ("记忆ABC的v2", ["记忆", "记", "忆", "abc", "的", "v2"]),
        ("タワー", ["タワ", "ワー", "タ", "ワ", "ー"]),
        ("ﾄﾞｳ", ["ドウ", "ド", "ウ"]),
        ("배웠다", ["배웠", "웠다", "배", "웠", "다"]),
        ("हिन्दी में", ["हिन्दी", "में"]),
        ("ไทย", ["ไท", "ทย", "ไ", "ท", "ย"]),
        ("🙂 \ufe0f …", []),
        ("", []),
    ],
)
def test_words_of_a_text(text: str, expected: list[str]) -> None:
    assert words(text) == expected


def test_a_question_asks_for_pairs_and_for_a_character_only_when_it_stands_alone() -> None:
    assert asked("数据库") == ["数据", "据库"]
    assert asked("库") == ["库"]
    assert asked("database 数据") == ["database", "数据"]


@given(st.text())
def test_what_a_question_asks_for_is_what_the_text_holds(text: str) -> None:
    assert set(query_tokens("t", "u", text)) <= set(lexemes("t", "u", text))
    assert lexemes("t", "u", text) == lexemes("t", "u", unicodedata.normalize("NFD", text))


@given(st.text(alphabet=st.characters()))
def test_lexemes_need_no_escaping(text: str) -> None:
    for lexeme in lexemes("tenant", "user", text):
        assert not re.search(r"['\\\s\x00:&|!<>()*]", lexeme)
        assert len(lexeme) <= MAX_WORD + 4


def test_long_words_and_long_texts_are_bounded() -> None:
    assert words("x" * 100) == ["x" * 64, "x" * 36]
    many = " ".join(f"w{number}" for number in range(MAX_LEXEMES + 100))
    assert len(words(many)) == MAX_LEXEMES
    assert len(asked(many)) == MAX_QUERY_TOKENS


def test_scopes_do_not_share_lexemes() -> None:
    assert scope_prefix("a", "bc") != scope_prefix("ab", "c")
    assert not set(lexemes("t", "u1", "same words")) & set(lexemes("t", "u2", "same words"))


def test_text_forms() -> None:
    prefix = scope_prefix("t", "u")
    assert search_tokens("t", "u", "two words") == f"'{prefix}two' '{prefix}words'"
    assert search_tokens("t", "u", "…") == ""
    assert as_tsquery([f"{prefix}two", f"{prefix}words"]) == f"'{prefix}two' | '{prefix}words'"
