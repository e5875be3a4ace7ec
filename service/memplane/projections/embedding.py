"""Vectors of texts, made once and kept: `memory_embedding` (design section 5), so that a rebuild needs no model call.

The rule for long texts: what exceeds `MAX_CHARACTERS` is cut at that length before it is embedded, never refused; the
stored vector is keyed by the digest of the whole text. A blank text is embedded as a single full stop, since most
models refuse the empty string; a vector of zeros, to which no angle exists, becomes the diagonal unit vector.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from memplane.contracts import EmbeddingProvider, Purpose
from memplane.errors import MemplaneError, RetrievalError, TargetUnavailable
from memplane.outbox.events import TEXT_CHARACTERS

if TYPE_CHECKING:
    from memplane.projections.generation import VectorSpace
    from memplane.schema.database import Database
    from memplane.signal import Signal

MAX_CHARACTERS = TEXT_CHARACTERS
"""About 2,000 to 8,000 tokens, which the common embedding models accept."""

Item: TypeAlias = tuple[str, bytes, str]
"""tenant, SHA-256 of the text, text."""

Embed: TypeAlias = Callable[[EmbeddingProvider, Sequence[str], int], Awaitable[Sequence[Sequence[float]]]]
"""(provider, texts, batch size) → one vector per text, in order: `memplane.retrieval.embed_contents`, injected."""

_READ = """
SELECT e.tenant, e.text_hash, e.dimensions, e.vector
FROM unnest($1::text[], $2::bytea[]) AS wanted (tenant, text_hash)
JOIN {schema}.memory_embedding AS e
  ON e.tenant = wanted.tenant AND e.text_hash = wanted.text_hash AND e.model = $3 AND e.revision = $4
"""

_STORE = """
INSERT INTO {schema}.memory_embedding (tenant, text_hash, model, revision, dimensions, vector)
SELECT tenant, text_hash, $3, $4, $5, vector
FROM unnest($1::text[], $2::bytea[], $6::bytea[]) AS made (tenant, text_hash, vector)
ON CONFLICT (tenant, text_hash, model, revision)
DO UPDATE SET dimensions = excluded.dimensions, vector = excluded.vector
WHERE memory_embedding.dimensions <> excluded.dimensions
"""


_AWAY = frozenset({"RETRIEVAL_PROVIDER_UNAVAILABLE", "RETRIEVAL_TIMEOUT"})


class VectorInvalid(MemplaneError):  # noqa: N818 - reads as what the vector is
    """A provider gave a vector of the wrong length, or one that is not finite."""


@dataclass(frozen=True, slots=True)
class AbsentProvider:
    """Stands in for a model that no setting names: what is stored of it can be read, nothing can be added."""

    model: str
    revision: str
    dimensions: int

    async def embed(
        self, contents: Sequence[str], *, purpose: Purpose, signal: Signal | None = None
    ) -> list[Sequence[float]]:
        """Raises `TargetUnavailable`."""
        raise TargetUnavailable("embedding", "no setting names the model of this generation")


class StoredEmbeddings:
    """The vectors of one provider, from the database where they are known."""

    def __init__(
        self,
        database: Database,
        provider: EmbeddingProvider,
        embed: Embed,
        *,
        batch_size: int = 64,
        concurrency: int = 1,
    ) -> None:
        """`concurrency`: how many batches `embed` has in flight, so that a remote provider does not idle."""
        self.database = database
        self.provider = provider
        self._embed = embed
        self._batch_size = batch_size
        self._concurrency = concurrency

    async def vectors(self, items: Sequence[Item]) -> list[array[float]]:
        """One float32 vector per item, in order; what is missing is embedded in batches and stored.

        Raises `TargetUnavailable("embedding", …)` when the provider does not answer, `VectorInvalid` for its nonsense.
        """
        known = await self._read({(tenant, digest) for tenant, digest, _ in items})
        missing = {(tenant, digest): text for tenant, digest, text in items if (tenant, digest) not in known}
        keys = list(missing)
        # Stored every few batches, so that a call that runs out of time has not been for nothing.
        step = self._batch_size * self._concurrency
        for start in range(0, len(keys), step):
            batch = keys[start : start + step]
            made = await self._make([missing[key] for key in batch])
            fresh = dict(zip(batch, made, strict=True))
            await self._store(fresh)
            known.update(fresh)
        return [known[(tenant, digest)] for tenant, digest, _ in items]

    @property
    def absent(self) -> bool:
        """Whether no provider stands behind them."""
        return isinstance(self.provider, AbsentProvider)

    def without_provider(self, space: VectorSpace) -> StoredEmbeddings:
        """The stored vectors of another model, for which there is no provider."""
        provider = AbsentProvider(space.model, space.revision, space.dimensions)
        return StoredEmbeddings(
            self.database, provider, self._embed, batch_size=self._batch_size, concurrency=self._concurrency
        )

    async def healthy(self) -> bool:
        """Whether the provider embeds a short text; never raises."""
        try:
            await self._make(["memplane"])
        except (MemplaneError, OSError, TimeoutError):
            return False
        return True

    async def _read(self, keys: set[tuple[str, bytes]]) -> dict[tuple[str, bytes], array[float]]:
        wanted = sorted(keys)
        async with self.database.acquire() as connection:
            rows = await connection.fetch(
                self.database.sql(_READ),
                [tenant for tenant, _ in wanted],
                [digest for _, digest in wanted],
                self.provider.model,
                self.provider.revision,
            )
        return {
            (row["tenant"], bytes(row["text_hash"])): unpack(row["vector"])
            for row in rows
            # A row of another length was made before the revision was named properly: it is embedded anew.
            if row["dimensions"] == self.provider.dimensions
        }

    async def _make(self, texts: Sequence[str]) -> list[array[float]]:
        try:
            made = await self._embed(self.provider, [text_to_embed(text) for text in texts], self._batch_size)
        except (OSError, TimeoutError):
            raise TargetUnavailable("embedding", "the provider does not answer") from None
        except RetrievalError as error:
            if error.outage or error.code in _AWAY:
                raise TargetUnavailable("embedding", "the provider does not answer") from None
            raise
        return [checked(vector, self.provider.dimensions) for vector in made]

    async def _store(self, vectors: dict[tuple[str, bytes], array[float]]) -> None:
        rows = sorted(vectors.items())
        async with self.database.acquire() as connection:
            await connection.execute(
                self.database.sql(_STORE),
                [tenant for (tenant, _), _ in rows],
                [digest for (_, digest), _ in rows],
                self.provider.model,
                self.provider.revision,
                self.provider.dimensions,
                [pack(vector) for _, vector in rows],
            )


def text_to_embed(text: str) -> str:
    """The part of a text that is embedded: its first `MAX_CHARACTERS` characters, a full stop for a blank text."""
    cut = text[:MAX_CHARACTERS]
    return cut if cut.strip() else "."


def direction(vector: Sequence[float]) -> Sequence[float]:
    """The vector with length 1; the diagonal for all zeros, like `checked` makes it of a text's."""
    length = sum(value * value for value in vector) ** 0.5
    if length == 0:
        return [len(vector) ** -0.5] * len(vector)
    return [value / length for value in vector]


def checked(vector: Sequence[float], dimensions: int) -> array[float]:
    """The vector as float32, with the angle that cosine needs. Raises `VectorInvalid`."""
    packed = array("f", vector)
    if len(packed) != dimensions:
        raise VectorInvalid(f"The embedding has {len(packed)} dimensions instead of {dimensions}")
    square = math.fsum(value * value for value in packed)
    if not math.isfinite(square):
        raise VectorInvalid("The embedding must hold finite numbers only")
    if square == 0.0:
        return array("f", [1 / math.sqrt(dimensions)] * dimensions)
    return packed


def pack(vector: array[float]) -> bytes:
    """Little-endian float32 values, as `memory_embedding.vector` holds them."""
    if sys.byteorder == "big":
        vector = array("f", vector)
        vector.byteswap()
    return vector.tobytes()


def unpack(stored: bytes) -> array[float]:
    """The inverse of `pack`."""
    vector = array("f")
    vector.frombytes(stored)
    if sys.byteorder == "big":
        vector.byteswap()
    return vector
