"""A new generation of Milvus, made from PostgreSQL alone, while the service keeps serving from the old one.

    fill     the row `building` exists, so workers write both collections; every live memory is copied, vectors from
             `memory_embedding` (the model is asked only for what is not stored of it)
    repair   compared with the truth until nothing differs, then the row is switched in one transaction
    verify   compared once more; the old collection is dropped after its time of grace

Each stage and the position in it are recorded, so a process that was killed is followed by one that goes on there.
Source: design section 7; decision 0018.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from memplane.outbox.events import Family, Target
from memplane.projections.embedding import StoredEmbeddings
from memplane.projections.generation import Generation, ensure_generation
from memplane.projections.milvus import MilvusProjection
from memplane.projections.milvus_client import MilvusConnection
from memplane.rebuild import generations, runs
from memplane.rebuild.fill import fill
from memplane.rebuild.outlast import outlast
from memplane.rebuild.pages import Page, copy_page
from memplane.rebuild.report import ProgressCallback, Report, Stage, silent
from memplane.rebuild.runs import Run, carry_out
from memplane.rebuild.settle import Comparison, settle
from memplane.reconcile.milvus import MilvusInventory
from memplane.schema.database import Database
from memplane.settings import RebuildSettings
from memplane.signal import Signal

log = logging.getLogger(__name__)


async def rebuild_milvus(
    database: Database,
    milvus: MilvusConnection,
    embeddings: StoredEmbeddings,
    settings: RebuildSettings,
    *,
    accept_ineffective: bool = False,
    signal: Signal | None = None,
    progress: ProgressCallback = silent,
) -> Report:
    """Build a generation with the model of `embeddings`, switch to it, and return what was done.

    `accept_ineffective`: switch although memories are left that cannot be projected (their events are dead).

    Goes on with the unfinished rebuild if there is one. A call that `signal` stopped reports `cancelled` and can be
    repeated. Raises `RebuildRefused`, `RebuildLost`, `RebuildFailed`, `TargetUnavailable`, `IdentityError`; after
    each of them it can be repeated, too.
    """
    # The first process of a backend may be this one: something must be in use before something else is built.
    await ensure_generation(database, Target.MILVUS, embeddings.provider)
    run, generation = await generations.begin(database, embeddings.provider)
    report = Report(run.id, run.target, generation=generation.id, collection=generation.collection, resumed=run.resumed)
    work = _Rebuild(
        database,
        settings,
        run,
        generation,
        report,
        progress,
        MilvusProjection(database, milvus, embeddings, only=generation),
        accept_ineffective,
    )
    await carry_out(database, run, report, work.go, signal)
    return report


@dataclass(slots=True)
class _Rebuild:
    """One call's state. `target` writes the new generation alone."""

    database: Database
    settings: RebuildSettings
    run: Run
    generation: Generation
    report: Report
    progress: ProgressCallback
    target: MilvusProjection
    accept_ineffective: bool

    async def go(self, signal: Signal) -> bool:
        """Every stage that is left. False when `signal` stopped it."""
        # Also when a rebuild is taken up again: the collection may have been lost meanwhile, or not be loaded.
        await outlast(self.target.start, signal)
        if self.run.stage is Stage.FILL and not await self._fill(signal):
            return False
        if self.run.stage is Stage.REPAIR and not await self._repair(signal):
            return False
        if not await self._settle(signal):
            return False
        await runs.finish(self.database, self.run)
        self._log("rebuild completed")
        return True

    async def _fill(self, signal: Signal) -> bool:
        self._log("filling a new generation")

        async def copy(page: Page) -> int:
            return await copy_page(self.database, self.target, page, Family.NODE, overwrite=False)

        filled = await fill(self.database, self.run, self.settings, copy, signal=signal, progress=self.progress)
        self.report.copied += filled.memories
        self.report.repaired += filled.repairs
        if not filled.complete:
            return False
        await runs.enter(self.database, self.run, Stage.REPAIR)
        return True

    async def _repair(self, signal: Signal) -> bool:
        self._log("comparing the new generation with the truth")
        if not await self._settle(signal):
            return False
        self.report.retired = await generations.switch(
            self.database, self.run, self.generation, grace_seconds=self.settings.grace_seconds
        )
        self._log("switched to the new generation", retired=self.report.retired)
        return True

    async def _settle(self, signal: Signal) -> bool:
        what = Comparison(
            self.target,
            self.settings.rounds,
            MilvusInventory(self.target.milvus, self.generation),
            # Once it is in use, what it lacks must not keep the rebuild from ending.
            accept_ineffective=self.accept_ineffective or self.run.stage is Stage.VERIFY,
        )
        repaired = await settle(self.database, what, self.run, signal=signal, progress=self.progress)
        self.report.repaired += repaired or 0
        return repaired is not None

    def _log(self, message: str, **more: object) -> None:
        extra = {
            "target": self.run.target.value,
            "rebuild": self.run.id,
            "generation": self.generation.id,
            "stage": self.run.stage.value,
            **more,
        }
        log.info(message, extra=extra)
