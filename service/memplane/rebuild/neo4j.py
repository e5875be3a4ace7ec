"""The graph, written anew from PostgreSQL in place, by mark and sweep, while the service reads it.

    fill     every live memory's node and relations are written, whatever is there, and marked
    sweep    what has no mark is looked up in the truth; what has no memory goes
    unmark   the marks are taken off
    verify   compared with the truth until nothing differs

Readers see the graph all the time: nothing that is right disappears. Source: design section 7; decision 0018.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial

from memplane.outbox.events import Family, Target
from memplane.projections.neo4j import Neo4jProjection
from memplane.projections.neo4j_client import Neo4jConnection
from memplane.rebuild import runs
from memplane.rebuild.fill import fill
from memplane.rebuild.neo4j_marks import Marks
from memplane.rebuild.neo4j_sweep import Swept, sweep
from memplane.rebuild.outlast import outlast
from memplane.rebuild.pages import Page, copy_page
from memplane.rebuild.report import Progress, ProgressCallback, Report, Stage, silent
from memplane.rebuild.runs import Run, carry_out
from memplane.rebuild.settle import Comparison, settle
from memplane.schema.database import Database
from memplane.settings import RebuildSettings
from memplane.signal import Signal

log = logging.getLogger(__name__)


async def rebuild_neo4j(
    database: Database,
    neo4j: Neo4jConnection,
    settings: RebuildSettings,
    *,
    allow_orphans: bool = False,
    signal: Signal | None = None,
    progress: ProgressCallback = silent,
) -> Report:
    """Write the graph anew and return what was done. Goes on with the unfinished rebuild if there is one.

    `allow_orphans`: remove any number of nodes without a memory. Raises like `rebuild_milvus`.
    """
    target = Neo4jProjection(database, neo4j)
    generation = await target.generation()
    async with database.transaction() as connection:
        row = await runs.unfinished(connection, database, Target.NEO4J)
        if row is not None:
            run = await runs.take_up(connection, database, Target.NEO4J, row)
        else:
            run = await runs.begin(connection, database, Target.NEO4J, Stage.FILL, generation.id)
    report = Report(run.id, run.target, generation=generation.id, resumed=run.resumed)
    marks = Marks(neo4j, generation.backend, run.id)
    work = _Rebuild(database, target, marks, run, report, settings, progress)
    await carry_out(database, run, report, partial(work.go, allow_orphans=allow_orphans), signal)
    return report


@dataclass(slots=True)
class _Rebuild:
    """One call's state."""

    database: Database
    target: Neo4jProjection
    marks: Marks
    run: Run
    report: Report
    settings: RebuildSettings
    progress: ProgressCallback

    async def go(self, signal: Signal, *, allow_orphans: bool) -> bool:
        """Every stage that is left. False when `signal` stopped it."""
        if self.run.stage is Stage.FILL and not await self._fill(signal):
            return False
        if self.run.stage is Stage.SWEEP and not await self._sweep(signal, allow_orphans=allow_orphans):
            return False
        if self.run.stage is Stage.UNMARK and not await self._unmark(signal):
            return False
        what = Comparison(self.target, self.settings.rounds, accept_ineffective=True)
        repaired = await settle(self.database, what, self.run, signal=signal, progress=self.progress)
        if repaired is None:
            return False
        self.report.repaired += repaired
        await runs.finish(self.database, self.run)
        self._log("rebuild completed")
        return True

    async def _fill(self, signal: Signal) -> bool:
        self._log("writing the graph anew")
        filled = await fill(self.database, self.run, self.settings, self._write, signal=signal, progress=self.progress)
        self.report.copied += filled.memories
        self.report.repaired += filled.repairs
        if not filled.complete:
            return False
        await runs.enter(self.database, self.run, Stage.SWEEP)
        return True

    async def _write(self, page: Page) -> int:
        """A page's nodes, then its relations: their ends may be bare nodes until their own page comes."""
        repairs = await copy_page(self.database, self.target, page, Family.NODE, overwrite=True)
        await self.marks.set_nodes(page.ids)
        repairs += await copy_page(self.database, self.target, page, Family.EDGES, overwrite=True)
        await self.marks.set_edges(page.ids)
        return repairs

    async def _sweep(self, signal: Signal, *, allow_orphans: bool) -> bool:
        self._log("looking up what was not written")

        async def once() -> Swept | None:
            return await sweep(
                self.database,
                self.marks,
                self.run,
                self.settings,
                allow_orphans=allow_orphans,
                signal=signal,
                progress=self.progress,
            )

        swept = await outlast(once, signal)
        if swept is None:
            return False
        self.report.swept += len(swept.orphans) + swept.nameless
        self.report.repaired += swept.repaired
        await runs.enter(self.database, self.run, Stage.UNMARK)
        return True

    async def _unmark(self, signal: Signal) -> bool:
        async def once() -> list[int]:
            after = self.run.position
            if page := await self.marks.page(after, self.settings.page_size):
                await self.marks.remove(after, page[-1])
            return page

        while ids := await outlast(once, signal):
            if signal.aborted:
                return False
            self.run.position, self.run.done = ids[-1], self.run.done + len(ids)
            self.run.total = max(self.run.total, self.run.done)
            await runs.save(self.database, self.run)
            self.progress(Progress(self.run.stage, self.run.done, self.run.total))
        await runs.enter(self.database, self.run, Stage.VERIFY)
        return True

    def _log(self, message: str) -> None:
        extra = {"target": "neo4j", "rebuild": self.run.id, "stage": self.run.stage.value}
        log.info(message, extra=extra)
