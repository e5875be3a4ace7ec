"""The inputs that design section 11 fixes: distinct texts of about 500 bytes, vectors of 384 dimensions."""

from __future__ import annotations

import random
from collections.abc import Iterator
from hashlib import sha256
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.frame import DIMENSIONS

TEXT_BYTES = 500

VOCABULARY_SIZE = 20_000
COMMON = 100
"""The most frequent words, which a question would not be about."""


def _vocabulary() -> list[str]:
    """Distinct made-up words of two to four syllables, most frequent first."""
    syllables = [consonant + vowel for consonant in "bcdfghjklmnprstvz" for vowel in "aeiou"]
    generator = random.Random(0)
    words: dict[str, None] = {}
    while len(words) < VOCABULARY_SIZE:
        words["".join(generator.choices(syllables, k=generator.randint(2, 4)))] = None
    return list(words)


WORDS = _vocabulary()
_WEIGHTS = list(accumulate(1 / (rank + 2.7) ** 1.07 for rank in range(VOCABULARY_SIZE)))
"""Words are as frequent as in natural language (Zipf and Mandelbrot): a keyword index sees rare and common ones."""


_RARE_WEIGHTS = [1 / (rank + 2.7) ** 1.07 for rank in range(COMMON, VOCABULARY_SIZE)]


def texts(count: int, *, seed: int = 1) -> Iterator[str]:
    """Distinct texts; the first words are a number, so that no two are equal."""
    generator = random.Random(seed)
    for number in range(count):
        words = generator.choices(WORDS, cum_weights=_WEIGHTS, k=TEXT_BYTES // 4)
        yield f"note {seed}-{number}: {' '.join(words)}"[:TEXT_BYTES]


def question(generator: random.Random) -> str:
    """Three words that somebody might ask about: as frequent as in the texts, the most common ones left out."""
    return " ".join(generator.choices(WORDS[COMMON:], weights=_RARE_WEIGHTS, k=3))


def text_hash(text: str) -> bytes:
    """The key of a text's stored embedding (`long_term_memory.text_hash`)."""
    return sha256(text.encode()).digest()


def vectors(count: int, *, seed: int) -> npt.NDArray[np.float32]:
    """Random unit vectors, one per row."""
    values = np.random.default_rng(seed).standard_normal((count, DIMENSIONS), dtype=np.float32)
    unit: npt.NDArray[np.float32] = values / np.linalg.norm(values, axis=1, keepdims=True)
    return unit


def drafts(count: int, *, seed: int = 1) -> Iterator[dict[str, Any]]:
    """MEMORY.WRITE entries with the reserved fields that a typical agent sets."""
    for number, text in enumerate(texts(count, seed=seed)):
        yield {
            "content": text,
            "metadata": {
                "importance": (number % 10) / 10,
                "category": f"category-{number % 20}",
                "tags": [f"tag-{number % 7}", f"tag-{number % 11}"],
                "source": "bench",
            },
        }
