"""The generations that a Milvus worker writes, as the rows say right now: the active one, and one that is being built.

The rows are read for every batch, after its truth was read. So a worker needs no restart and no message to notice a
rebuild or a switch, and no event counts as processed before every generation that the rows named has it. Why that is
enough, decision 0018 says. Source: design section 7.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from memplane.errors import TargetUnavailable
from memplane.outbox.events import Target
from memplane.outbox.patience import DATABASE_ERRORS
from memplane.projections.embedding import StoredEmbeddings
from memplane.projections.generation import Generation, check_space, ensure_generation, read_written, same_space
from memplane.projections.milvus_client import MilvusConnection
from memplane.projections.milvus_collection import ensure_collection
from memplane.schema.database import Database


@dataclass(frozen=True, slots=True)
class Written:
    """One generation that a batch has to reach, and where its vectors come from."""

    generation: Generation
    embeddings: StoredEmbeddings


class MilvusGenerations:
    """Reads the rows and keeps their collections ready. `embeddings`: those of the settings, the current model first.

    With `only` it is that generation, whatever the rows say (a rebuild that fills or compares it).
    """

    def __init__(
        self,
        database: Database,
        milvus: MilvusConnection,
        embeddings: Sequence[StoredEmbeddings],
        *,
        only: Generation | None = None,
    ) -> None:
        self._database = database
        self._milvus = milvus
        self._embeddings = embeddings
        self._only = only
        self._backend = ""
        self._ready: set[int] = set()
        self._preparing = asyncio.Lock()
        self.away = False
        """Whether the rows could not be read when last asked for."""

    async def start(self) -> Generation:
        """The active generation, made if there is none; its collection exists.

        Raises `IdentityError` when the settings name another model than the active generation's, or when a collection
        of its name is somebody else's.
        """
        if self._only is None:
            active = await ensure_generation(self._database, Target.MILVUS, self._embeddings[0].provider)
            self._backend = active.backend
            check_space(active, *(one.provider for one in self._embeddings))
        else:
            active = self._only
        await self._prepare(active)
        return active

    async def written(self) -> list[Written]:
        """All generations that are to be written now, the active one first; their collections exist.

        Raises `TargetUnavailable("postgresql", …)` when the rows cannot be read.
        """
        if self._only is None and not self._backend:
            await self.start()
        found = [self._only] if self._only is not None else await self._rows()
        if self._only is None and (not found or found[0].state != "active"):
            # Somebody has removed the active row: like at the first start.
            found = [await self.start(), *found]
        for generation in found:
            await self._prepare(generation)
        return [Written(generation, self._of(generation)) for generation in found]

    def forget(self, generation: Generation) -> None:
        """Its collection is gone: it is made anew if the rows still name it."""
        self._ready.discard(generation.id)

    async def _rows(self) -> list[Generation]:
        try:
            rows = await read_written(self._database, Target.MILVUS, self._backend)
        except DATABASE_ERRORS:
            self.away = True
            raise TargetUnavailable("postgresql", "the generations cannot be read") from None
        self.away = False
        return rows

    async def _prepare(self, generation: Generation) -> None:
        if generation.id in self._ready:
            return
        async with self._preparing:
            if generation.id not in self._ready:
                await ensure_collection(self._milvus, generation)
                self._ready.add(generation.id)

    def _of(self, generation: Generation) -> StoredEmbeddings:
        for embeddings in self._embeddings:
            if same_space(embeddings.provider, generation):
                return embeddings
        return self._embeddings[0].without_provider(generation)
