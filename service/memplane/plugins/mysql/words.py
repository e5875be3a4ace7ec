"""The words of memories as numbers: an inverted table that MySQL and MariaDB search alike, without a parser of theirs.

A word is a lexeme of `plugins.postgres.tokens` (the same tokenizer, CJK included), hashed with its whole scope to 63
bits: a posting list holds one user's memories alone, and every statement compares the scope of the memory besides.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from memplane.contracts import Scope
from memplane.plugins.postgres.tokens import lexemes, query_tokens

MAX_WORDS: Final = 2048
"""Distinct words kept per memory, the first ones of the text: each is a row."""


def words_of(scope: Scope, text: str) -> list[int]:
    """What the table holds for a memory, ascending and distinct."""
    return sorted({_number(scope, word) for word in lexemes(scope.tenant, scope.user, text)[:MAX_WORDS]})


def asked_words(scope: Scope, text: str) -> list[int]:
    """What a question asks for, distinct, in its order."""
    return list(dict.fromkeys(_number(scope, word) for word in query_tokens(scope.tenant, scope.user, text)))


def _number(scope: Scope, word: str) -> int:
    tenant = scope.tenant.encode()
    digest = blake2b(b"%d:%b%b\0%b" % (len(tenant), tenant, scope.user.encode(), word.encode()), digest_size=8)
    return int.from_bytes(digest.digest()) >> 1
