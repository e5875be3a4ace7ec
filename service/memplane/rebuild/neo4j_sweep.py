"""What a rebuild of the graph did not write: looked up in the truth, and removed if it is not there.

Whatever names a memory is removed by a repair event, so that a worker does it under the version rules. As everywhere,
more orphans than a fraction of the graph stop the rebuild, before any of them is touched, unless that was allowed: a
wrong database explains them better than a right one.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from memplane.outbox.enqueue import Repair, enqueue_repairs
from memplane.outbox.events import Family, Target
from memplane.rebuild.errors import RebuildFailed
from memplane.rebuild.neo4j_marks import Marks, Unmarked
from memplane.rebuild.report import Progress, ProgressCallback
from memplane.rebuild.runs import FIRST_ID, Run
from memplane.schema.database import Database
from memplane.settings import RebuildSettings
from memplane.signal import Signal

ORPHAN_FRACTION = 0.1
"""More unexplained nodes than this fraction of the graph stop the rebuild."""

ORPHAN_FLOOR = 100
"""So many are never suspicious."""

BATCH = 500

# Each condition in the form that a partial unique index of the outbox answers.
_TRUTH = """
SELECT w.id, m.id IS NOT NULL AND m.deleted_at IS NULL AS live, COALESCE(m.version, 0) AS version,
       COALESCE(m.edges_version, 0) AS edges_version, m.tenant, m.user_id,
       EXISTS (SELECT FROM {schema}.memory_outbox AS o WHERE o.target = 'neo4j' AND o.aggregate_id = w.id
                 AND o.family = 'node' AND o.status = 'pending')
       OR EXISTS (SELECT FROM {schema}.memory_outbox AS o WHERE o.target = 'neo4j' AND o.aggregate_id = w.id
                    AND o.status = 'processing') AS busy
FROM unnest($1::bigint[]) AS w (id) LEFT JOIN {schema}.long_term_memory AS m ON m.id = w.id
"""


@dataclass(slots=True)
class Swept:
    """`orphans`: ids whose nodes have no memory. `repaired`: events inserted. `nameless`: nodes deleted at once."""

    orphans: array[int] = field(default_factory=lambda: array("q"))
    repaired: int = 0
    nameless: int = 0


async def sweep(
    database: Database,
    marks: Marks,
    run: Run,
    settings: RebuildSettings,
    *,
    allow_orphans: bool,
    signal: Signal,
    progress: ProgressCallback,
) -> Swept | None:
    """Go through the graph once; None when `signal` stopped it. Repeating it does no harm, so it is not resumed.

    Raises `RebuildFailed` for too many orphans.
    """
    swept, after, held = Swept(), FIRST_ID, 0
    while ids := await marks.page(after, settings.page_size):
        if signal.aborted:
            return None
        last, held = ids[-1], held + len(ids)
        swept.orphans.extend(await _dead(database, await marks.unmarked_nodes(after, last)))
        swept.repaired += await _repair(database, await marks.unmarked_edges(after, last), Family.EDGES)
        after = last
        progress(Progress(run.stage, held, max(held, run.total), f"{len(swept.orphans)} without a memory"))
    allowed = max(ORPHAN_FLOOR, ORPHAN_FRACTION * held)
    if not allow_orphans and len(swept.orphans) > allowed:
        raise RebuildFailed(
            f"{len(swept.orphans)} of {held} nodes have no memory in the truth, and none of them was touched. "
            "If the truth is right, run it again and allow orphans"
        )
    for start in range(0, len(swept.orphans), BATCH):
        unmarked = [Unmarked(one, "", "") for one in swept.orphans[start : start + BATCH]]
        swept.repaired += await _repair(database, unmarked, Family.NODE)
        swept.repaired += await _repair(database, unmarked, Family.EDGES)
    while gone := await marks.sweep_nameless(BATCH):
        swept.nameless += gone
    return swept


async def _dead(database: Database, unmarked: Sequence[Unmarked]) -> list[int]:
    """Those that do not live in the truth, and that no event is about to remove.

    What lives was written by a worker meanwhile.
    """
    if not unmarked:
        return []
    async with database.acquire() as connection:
        rows = await connection.fetch(database.sql(_TRUTH), [one.memory_id for one in unmarked])
    return [row["id"] for row in rows if not (row["live"] or row["busy"])]


async def _repair(database: Database, unmarked: Sequence[Unmarked], family: Family) -> int:
    """Repairs that make what the graph holds of these memories the truth, whatever that says by now."""
    if not unmarked:
        return 0
    whose = {one.memory_id: one for one in unmarked}
    async with database.transaction() as connection:
        rows = await connection.fetch(database.sql(_TRUTH), list(whose))
        repairs = [
            Repair(
                Target.NEO4J,
                row["id"],
                row["tenant"] or whose[row["id"]].tenant,
                row["user_id"] or whose[row["id"]].user_id,
                row["version"] if family is Family.NODE else row["edges_version"],
                "upsert" if row["live"] else "delete",
                family,
            )
            for row in rows
        ]
        return await enqueue_repairs(connection, database, repairs)
