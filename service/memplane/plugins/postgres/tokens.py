"""Words of a text as PostgreSQL indexes them: one deterministic tokenizer, for writing and for asking.

PostgreSQL's own parsers need a dictionary per language and know no Chinese; this one needs no extension and no
language setting. Words are runs of letters, digits and marks, NFKC and case-folded. Scripts that are written without
spaces (Chinese, Japanese, Thai …) and Korean, whose endings stick to the word, become overlapping pairs of characters;
single characters are indexed too, so that a question of one character finds something.

A lexeme starts with four characters that hash its scope. So the index's posting lists are per user: the cost of a
search grows with the caller's memories alone, and a count of a lexeme is a count within the scope. It is no access
check: every statement also compares tenant and user_id. Source: design section 8.
"""

from __future__ import annotations

import hashlib
import re
import sys
import unicodedata
from functools import lru_cache
from itertools import islice

TOKENIZER_VERSION = 1
"""Stored beside the lexemes (`tokens_version`); rows of an older version are tokenized anew by the backfill."""

MAX_WORD = 64
"""Longest lexeme in characters: longer runs (encoded data, mostly) are cut into pieces of this length."""

MAX_LEXEMES = 8192
"""Distinct lexemes kept per memory, the first ones of the text: keeps a tsvector far below PostgreSQL's 1 MiB."""

MAX_QUERY_TOKENS = 48
"""Distinct tokens of a question that count, the first ones."""

_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

# Scripts without spaces between words, and Hangul. Half-width and compatibility forms are gone after NFKC.
_UNSPACED = (
    "\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u109f"  # Myanmar
    "\u1100-\u11ff"  # Hangul jamo
    "\u1780-\u17ff"  # Khmer
    "\u2e80-\u2fdf"  # CJK and Kangxi radicals
    "\u3005-\u3007"  # iteration marks, ideographic zero
    "\u3021-\u3029"
    "\u3041-\u3096\u3099\u309a\u309d\u309e"  # hiragana
    "\u30a1-\u30fa\u30fc-\u30fe"  # katakana with the length mark
    "\u3105-\u312f\u31a0-\u31bf"  # bopomofo
    "\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"  # ideographs
    "\uac00-\ud7a3"  # Hangul syllables
    "\U00020000-\U0003ffff"  # ideographs beyond the first plane
)

_ASCII_WORD = re.compile(rf"[a-z0-9]{{1,{MAX_WORD}}}")


def _ranges(codes: list[int]) -> str:
    """A character class body that holds exactly `codes` (ascending)."""
    parts: list[str] = []
    start = previous = codes[0]
    for code in [*codes[1:], sys.maxunicode + 2]:
        if code != previous + 1:
            parts.append(f"{chr(start)}-{chr(previous)}")
            start = code
        previous = code
    return "".join(parts)


@lru_cache(maxsize=1)
def _run() -> re.Pattern[str]:
    """Matches either a run of an unspaced script (group 1) or a word of any other script (group 2).

    Python's `\\w` leaves out combining marks, which are parts of words in Hindi, Tamil, Arabic and others. Built on
    first use, because it looks at every code point once.
    """
    marks = [code for code in range(0x300, 0x1F000) if unicodedata.category(chr(code))[0] == "M"]
    marks += list(range(0xE0100, 0xE01F0))
    letter = rf"[^\W_{_UNSPACED}]"
    word = rf"{letter}(?:{letter}|(?![{_UNSPACED}])[{_ranges(marks)}]){{0,{MAX_WORD - 1}}}"
    return re.compile(rf"([{_UNSPACED}]+)|({word})")


def _words(text: str, *, singles: bool) -> dict[str, None]:
    """The distinct words and character pairs of a text, in order of first appearance."""
    if text.isascii():
        return dict.fromkeys(_ASCII_WORD.findall(text.lower()))
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    found: dict[str, None] = {}
    for run, word in _run().findall(folded):
        if word:
            found[word] = None
            continue
        for index in range(len(run) - 1):
            found[run[index : index + 2]] = None
        if singles or len(run) == 1:
            found.update(dict.fromkeys(run))
    return found


@lru_cache(maxsize=4096)
def scope_prefix(tenant: str, user_id: str) -> str:
    """Four characters that stand for a scope in front of each of its lexemes."""
    number = int.from_bytes(
        hashlib.sha256(f"{len(tenant)}:{tenant}{user_id}".encode(errors="surrogatepass")).digest()[:8]
    )
    prefix = ""
    for _ in range(4):
        number, digit = divmod(number, len(_ALPHABET))
        prefix += _ALPHABET[digit]
    return prefix


def lexemes(tenant: str, user_id: str, text: str) -> list[str]:
    """What the index holds for a memory: distinct lexemes, at most `MAX_LEXEMES`, in order of first appearance.

    A lexeme holds letters, digits and marks alone: nothing in it needs escaping inside quotes.
    """
    prefix = scope_prefix(tenant, user_id)
    return [prefix + word for word in islice(_words(text, singles=True), MAX_LEXEMES)]


def search_tokens(tenant: str, user_id: str, text: str) -> str:
    """The tsvector of a memory in PostgreSQL's text form, without positions: pass it as `$n::tsvector`.

    `lexemes` with `array_to_tsvector($n::text[])` gives the same value; this form is for inserting many rows at once.
    """
    words = _words(text, singles=True)
    if not words:
        return ""
    prefix = scope_prefix(tenant, user_id)
    return f"'{prefix}" + f"' '{prefix}".join(islice(words, MAX_LEXEMES)) + "'"


def query_tokens(tenant: str, user_id: str, text: str) -> list[str]:
    """The lexemes that a question asks for, at most `MAX_QUERY_TOKENS`.

    A run of an unspaced script asks for its pairs; for its characters only when it is a single one.
    """
    prefix = scope_prefix(tenant, user_id)
    return [prefix + word for word in _words(text, singles=False)][:MAX_QUERY_TOKENS]


def as_tsquery(alternatives: list[str]) -> str:
    """Lexemes as a tsquery in text form that matches any of them."""
    return "'" + "' | '".join(alternatives) + "'"
