"""The `hashing` provider: offline vectors from hashed words and character n-grams, for development and tests.

It knows no meaning, only shared wording, and that in any language: Chinese, Japanese and Korean runs give single
characters and pairs, other words give themselves and their character 3- and 4-grams. Every feature adds ±1 at two
hashed positions, damped by the logarithm of its count; vectors have length 1. The result depends on the text and the
settings alone: not on the process, the platform or Python's hash seed.
"""

from __future__ import annotations

import asyncio
import math
import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b

from pydantic import BaseModel, ConfigDict, Field

from memplane.contracts import Purpose
from memplane.plugins.embeddings.text import cut, text_of
from memplane.plugins.registry import Resources
from memplane.signal import Signal

REVISION = "1"
"""Raised whenever the same text and settings would give another vector."""

# Scripts written without spaces: there a word is not delimited, so characters and pairs stand for words.
UNSPACED = (
    "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\uff66-\uff9d"
    "\u0e00-\u0e7f\u1000-\u109f\U00020000-\U0003ffff"
)
RUNS = re.compile(f"([{UNSPACED}]+)|([^\\W{UNSPACED}]+)")
YIELD_EVERY = 8
"""Texts between two turns of the event loop; a text of 500 characters takes about half a millisecond."""


class HashingSettings(BaseModel):
    """Options of the `hashing` provider."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dimensions: int = Field(384, ge=8, le=4096, description="length of a vector")
    max_characters: int = Field(
        16_384, ge=1, le=1_048_576, description="characters of a text that are embedded; the rest is cut"
    )


class HashingEmbedding:
    """An `EmbeddingProvider` without a model."""

    def __init__(self, settings: HashingSettings | None = None) -> None:
        self.settings = settings or HashingSettings()

    @property
    def model(self) -> str:
        return f"hashing-{self.settings.dimensions}-{self.settings.max_characters}"

    @property
    def revision(self) -> str:
        return REVISION

    @property
    def dimensions(self) -> int:
        return self.settings.dimensions

    async def embed(
        self, contents: Sequence[str], *, purpose: Purpose, signal: Signal | None = None
    ) -> list[Sequence[float]]:
        """One unit vector per content; documents and queries are treated alike. Raises the reason of an abort."""
        vectors: list[Sequence[float]] = []
        for index, content in enumerate(contents):
            if index % YIELD_EVERY == 0:
                await asyncio.sleep(0)
                if signal is not None:
                    signal.raise_if_aborted()
            vectors.append(embed_text(cut(text_of(content), self.settings.max_characters), self.dimensions))
        return vectors


def embed_text(text: str, dimensions: int) -> array[float]:
    """The unit vector of one text; a text without any letter or digit has one too, the same for all such texts."""
    counts = Counter(features(text)) or Counter([""])
    sums = [0.0] * dimensions
    for feature, count in counts.items():
        value = 1.0 if count == 1 else 1.0 + math.log(count)
        bits = _hash(feature)
        sums[(bits >> 2) % dimensions] += value if bits & 1 else -value
        sums[(bits >> 34) % dimensions] += value if bits & 2 else -value
    length = math.sqrt(math.fsum(value * value for value in sums))
    if length == 0.0:
        # Features that cancel each other exactly: practically impossible, and still no reason for a zero vector.
        sums[_hash(text) % dimensions] = length = 1.0
    return array("f", [value / length for value in sums])


def features(text: str) -> Iterator[str]:
    """Words and n-grams of a text, after compatibility normalisation and case folding."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    for unspaced, word in RUNS.findall(folded):
        if unspaced:
            yield from unspaced
            yield from (unspaced[i : i + 2] for i in range(len(unspaced) - 1))
        else:
            yield word
            yield from _grams(word)


@lru_cache(maxsize=16_384)
def _grams(word: str) -> tuple[str, ...]:
    # The edge marks tell a word's beginning and end from its middle, and n-grams from whole words.
    marked = f"^{word}$"
    return tuple(marked[i : i + n] for n in (3, 4) for i in range(len(marked) - n + 1))


@lru_cache(maxsize=65_536)
def _hash(feature: str) -> int:
    digest = blake2b(feature.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


class HashingPlugin:
    """The entry point."""

    settings_model = HashingSettings

    def create(self, settings: HashingSettings, resources: Resources) -> HashingEmbedding:
        return HashingEmbedding(settings)


plugin = HashingPlugin()
