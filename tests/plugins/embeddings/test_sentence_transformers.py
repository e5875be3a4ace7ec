"""The adapter of the local model library, tested with a small imitation of the one method it uses.

The library itself (with torch, several gigabytes) is no test dependency: what is shown here is the adapter's part.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from typing import Any

import pytest

from memplane.errors import RetrievalError, SettingsError
from memplane.plugins.embeddings.sentence_transformers import (
    SentenceTransformersEmbedding,
    SentenceTransformersSettings,
    plugin,
)
from memplane.plugins.registry import load_embedding
from memplane.signal import Signal, SignalAborted


class FakeEncoder:
    def __init__(self) -> None:
        self.calls: list[tuple[list[str], dict[str, Any]]] = []
        self.threads: set[int] = set()

    def encode(self, sentences: list[str], **options: Any) -> Any:
        self.threads.add(threading.get_ident())
        self.calls.append((sentences, options))
        return [[float(len(sentence)), 1.0] for sentence in sentences]


SETTINGS = SentenceTransformersSettings(
    model="/models/mini", name="mini", dimensions=2, max_characters=4, query_prefix="q: "
)


async def test_it_loads_once_lazily_and_works_in_a_thread() -> None:
    encoder = FakeEncoder()
    loads: list[int] = []

    def load() -> FakeEncoder:
        loads.append(1)
        return encoder

    made = SentenceTransformersEmbedding(SETTINGS, load=load)
    assert (made.model, made.revision, made.dimensions, loads) == ("mini", "main", 2, [])
    assert await made.embed([], purpose="document") == []
    assert loads == []
    assert await made.embed(["a", "abcdef"], purpose="document") == [[1.0, 1.0], [4.0, 1.0]]
    await made.embed(["a"], purpose="query")
    assert loads == [1]
    assert [sentences for sentences, _ in encoder.calls] == [["a", "abcd"], ["q: a"]]
    assert encoder.calls[0][1]["normalize_embeddings"] is True
    assert threading.get_ident() not in encoder.threads


async def test_failures_are_translated_and_aborts_seen() -> None:
    def broken() -> FakeEncoder:
        raise OSError("/secret/path")

    made = SentenceTransformersEmbedding(SETTINGS, load=broken)
    with pytest.raises(RetrievalError) as caught:
        await made.embed(["a"], purpose="document")
    assert str(caught.value) == "RETRIEVAL_BACKEND_ERROR: The local embedding model cannot be loaded"
    assert caught.value.outage
    signal = Signal()
    signal.abort()
    with pytest.raises(SignalAborted):
        await made.embed(["a"], purpose="document", signal=signal)


async def test_without_the_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(SettingsError, match=r"memplane\[sentence-transformers\]"):
        await SentenceTransformersEmbedding(SETTINGS).embed(["a"], purpose="document")


def test_it_is_registered_without_importing_the_library() -> None:
    assert load_embedding("sentence-transformers") is plugin
    if importlib.util.find_spec("sentence_transformers") is None:
        assert "sentence_transformers" not in sys.modules
