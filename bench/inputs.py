"""The inputs that design section 11 fixes: distinct texts of about 500 bytes, vectors of 384 dimensions."""

from __future__ import annotations

import random
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.frame import DIMENSIONS

TEXT_BYTES = 500

_VOCABULARY = (
    "agent answer ask battery blue book bridge cable calm carry centre change city clean cloud coffee colour "
    "company contract cook corner customer danger data deep deliver depart design dinner door dream drive early "
    "earth engine evening export family field fire flight floor forest friend garden glass green ground guitar "
    "harbour health hotel house invoice island join journey kitchen lake language late learn letter light limit "
    "machine market meeting memory message metal minute money morning mountain museum music nature network night "
    "north notebook number ocean office open order paper park partner pattern people phone piano plan plant price "
    "project promise quick quiet rain reason record remember report river road room school season secret service "
    "shelter ship shop signal silver simple south spring station stone storm story street summer table teacher "
    "ticket time tower train travel tree update valley village visit voice water weather website week window winter "
    "wood world write yellow yesterday"
)
WORDS = _VOCABULARY.split()


def texts(count: int, *, seed: int = 1) -> Iterator[str]:
    """Distinct texts; the first words are a number, so that no two are equal."""
    generator = random.Random(seed)
    for number in range(count):
        words = [f"note {seed}-{number}:"]
        length = len(words[0])
        while length < TEXT_BYTES:
            word = generator.choice(WORDS)
            words.append(word)
            length += len(word) + 1
        yield " ".join(words)[:TEXT_BYTES]


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
