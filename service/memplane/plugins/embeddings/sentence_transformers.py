"""The `sentence-transformers` provider: a model on this machine (extra `memplane[sentence-transformers]`).

The library and the model are loaded by the first call, in a thread: importing this module costs nothing. `model` may be
a folder, so that a machine without a way out needs no hub. The library is not safe for concurrent use, and one batch
already keeps the processor busy: calls take turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, Field

from memplane.contracts import Purpose
from memplane.errors import RetrievalError, SettingsError
from memplane.plugins.embeddings.text import cut, text_of
from memplane.plugins.registry import Resources
from memplane.retrieval.errors import BACKEND_ERROR
from memplane.signal import Signal


class Encoder(Protocol):
    """The part of the library's `SentenceTransformer` that is used."""

    def encode(self, sentences: list[str], **options: Any) -> Any: ...


class SentenceTransformersSettings(BaseModel):
    """Options of the `sentence-transformers` provider."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field("sentence-transformers/all-MiniLM-L6-v2", min_length=1, description="hub name, or a folder")
    name: str | None = Field(None, min_length=1, description="the model's name in the index; default: `model`")
    revision: str = Field("main", min_length=1, description="revision at the hub; part of the vector space's name")
    dimensions: int = Field(384, ge=1, le=32_768, description="length of the model's vectors")
    device: str | None = Field(None, description="cpu, cuda …; default: the library's choice")
    offline: bool = Field(False, description="never ask a hub: the model is a folder or already cached")
    batch_size: int = Field(32, ge=1, le=2048, description="texts the model computes at once")
    max_characters: int = Field(
        8_000, ge=1, le=1_048_576, description="characters of a text that are embedded; the model may cut further"
    )
    document_prefix: str = Field("", description="put before stored texts (models trained with one, such as E5)")
    query_prefix: str = Field("", description="put before queries")


class SentenceTransformersEmbedding:
    """An `EmbeddingProvider` on a local model. `load` makes the encoder; tests give one of their own."""

    def __init__(self, settings: SentenceTransformersSettings, *, load: Callable[[], Encoder] | None = None) -> None:
        self.settings = settings
        self._load = load or (lambda: load_encoder(settings))
        self._encoder: Encoder | None = None
        self._turn = asyncio.Lock()

    @property
    def model(self) -> str:
        return self.settings.name or self.settings.model

    @property
    def revision(self) -> str:
        return self.settings.revision

    @property
    def dimensions(self) -> int:
        return self.settings.dimensions

    async def embed(
        self, contents: Sequence[str], *, purpose: Purpose, signal: Signal | None = None
    ) -> list[Sequence[float]]:
        """One unit vector per content, in order. A batch that runs is not interrupted; an abort is seen before it.

        Raises `SettingsError` when the library is missing, RETRIEVAL_BACKEND_ERROR when the model cannot be loaded or
        fails.
        """
        prefix = self.settings.query_prefix if purpose == "query" else self.settings.document_prefix
        texts = [prefix + cut(text_of(content), self.settings.max_characters) for content in contents]
        async with self._turn:
            if signal is not None:
                signal.raise_if_aborted()
            if not texts:
                return []
            return await asyncio.to_thread(self._encode, texts)

    def _encode(self, texts: list[str]) -> list[Sequence[float]]:
        try:
            rows = self._loaded().encode(
                texts,
                batch_size=self.settings.batch_size,
                normalize_embeddings=True,
                convert_to_numpy=True,
                show_progress_bar=False,
            )
            return [[float(value) for value in row] for row in rows]
        except (SettingsError, RetrievalError):
            raise
        except Exception:  # noqa: BLE001 - the library raises what its own dependencies raise, with paths in the text
            raise RetrievalError(BACKEND_ERROR, "The local embedding model failed") from None

    def _loaded(self) -> Encoder:
        if self._encoder is None:
            try:
                self._encoder = self._load()
            except SettingsError:
                raise
            except Exception:  # noqa: BLE001 - as above; hubs, files and accelerators fail in their own ways
                raise RetrievalError(BACKEND_ERROR, "The local embedding model cannot be loaded", outage=True) from None
        return self._encoder


def load_encoder(settings: SentenceTransformersSettings) -> Encoder:
    """Import the library and load the model. Raises `SettingsError` when the extra is not installed."""
    try:
        from sentence_transformers import SentenceTransformer
    except ModuleNotFoundError:
        raise SettingsError(
            "the embedding plugin 'sentence-transformers' needs memplane[sentence-transformers]"
        ) from None
    return SentenceTransformer(  # type: ignore[no-any-return]
        settings.model, device=settings.device, revision=settings.revision, local_files_only=settings.offline
    )


class SentenceTransformersPlugin:
    """The entry point."""

    settings_model = SentenceTransformersSettings

    def create(self, settings: SentenceTransformersSettings, resources: Resources) -> SentenceTransformersEmbedding:
        return SentenceTransformersEmbedding(settings)


plugin = SentenceTransformersPlugin()
