"""Copying the truth into a target, page by page, without a lock across the call to the target.

A page is read, projected, and looked at once more: a memory that has changed meanwhile may have been overwritten with
what it was, so it gets a repair event, which a worker projects after the page. One that changes later gets an event of
its own anyway. So once a page is done, the target is behind the truth only where an event is unfinished (decision
0018).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from memplane.errors import IdentityError, MemplaneError, TargetUnavailable
from memplane.outbox.enqueue import Operation, Repair, enqueue_repairs
from memplane.outbox.events import Event, Family, ProjectionTarget, Target, Task, TaskFailed, Truth
from memplane.outbox.truth import read_truths
from memplane.schema.database import Database

log = logging.getLogger(__name__)

CALL_SECONDS = 120.0
"""Time for one page at the target, embedding included."""

_IDS = """
SELECT id FROM {schema}.long_term_memory
WHERE id > $1 AND deleted_at IS NULL AND (expires_at IS NULL OR expires_at > statement_timestamp())
ORDER BY id LIMIT $2
"""

_TOTAL = "SELECT count(*) FROM {schema}.long_term_memory WHERE deleted_at IS NULL"

_NOW = """
SELECT id, version, edges_version, deleted_at IS NULL AS live FROM {schema}.long_term_memory
WHERE id = ANY ($1::bigint[])
"""

_NOBODY = UUID(int=0)


@dataclass(frozen=True, slots=True)
class Page:
    """Live memories in id order; everything up to `high` belongs to this page or to one before it."""

    ids: Sequence[int]
    high: int


async def total(database: Database) -> int:
    """About how many memories there are to copy."""
    async with database.acquire() as connection:
        return int(await connection.fetchval(database.sql(_TOTAL)))


async def next_page(database: Database, after: int, size: int) -> Page | None:
    """The next `size` live memories above `after`; None when there are none."""
    async with database.acquire() as connection:
        rows = await connection.fetch(database.sql(_IDS), after, size)
    return Page([row["id"] for row in rows], rows[-1]["id"]) if rows else None


async def copy_page(
    database: Database, target: ProjectionTarget, page: Page, family: Family, *, overwrite: bool
) -> int:
    """Project the present truth of a page; returns how many repairs it took. `overwrite`: also what seems right.

    What the target refuses gets a repair event, so that it is retried, and in the end dead, like any other event.
    Raises `TargetUnavailable` and `TimeoutError`.
    """
    events = [_event(memory_id, target.name, family, overwrite=overwrite) for memory_id in page.ids]
    truths = await read_truths(database, events, target.needs)
    tasks = [Task(event, truths[event.id]) for event in events]
    # What an old application has just written is projected by the event that comes with its hash (decision 0020).
    tasks = [task for task in tasks if task.truth.content_hash or not task.truth.live]
    if family is Family.EDGES:
        # A memory that never had a relation has no set of them whose version the graph could hold.
        tasks = [task for task in tasks if task.truth.edges_version > 0]
    if not tasks:
        return 0
    refused = await _project(target, tasks)
    return await _repair_changed(database, target.name, family, tasks, refused)


async def _project(target: ProjectionTarget, tasks: Sequence[Task]) -> set[int]:
    """Project; a part that fails for its own sake is halved until the culprit is alone. Returns the culprits."""
    refused: set[int] = set()
    parts = [list(tasks)]
    while parts:
        part = parts.pop()
        try:
            await target.project(part, timeout=CALL_SECONDS)
        except TaskFailed as refusal:
            refused.add(refusal.memory_id)
            parts += [[task for task in part if task.truth.memory_id != refusal.memory_id]] if len(part) > 1 else []
        except (TargetUnavailable, IdentityError):
            raise
        except MemplaneError as error:
            if len(part) > 1:
                middle = len(part) // 2
                parts += [part[middle:], part[:middle]]
                continue
            refused.add(part[0].truth.memory_id)
            log.warning(
                "a memory is refused and left to the workers",
                extra={
                    "target": target.name.value,
                    "memory_id": part[0].truth.memory_id,
                    "error": type(error).__name__,
                },
            )
    return refused


async def _repair_changed(
    database: Database, target: Target, family: Family, tasks: Sequence[Task], refused: Collection[int]
) -> int:
    """Repairs of what has changed since it was read, and of what was refused."""
    async with database.acquire() as connection:
        rows = await connection.fetch(database.sql(_NOW), [task.truth.memory_id for task in tasks])
    now = {row["id"]: row for row in rows}
    repairs = [
        repair
        for task in tasks
        for repair in [_repair(target, family, task.truth, now.get(task.truth.memory_id))]
        if task.truth.memory_id in refused or _changed(family, task.truth, repair)
    ]
    if not repairs:
        return 0
    async with database.transaction() as connection:
        return await enqueue_repairs(connection, database, repairs)


def _repair(target: Target, family: Family, copied: Truth, now: Mapping[str, object] | None) -> Repair:
    """The event that makes what the target holds the present truth; `now` is the row, None when it is gone."""
    live = now is not None and bool(now["live"])
    version = "version" if family is Family.NODE else "edges_version"
    newest = int(str(now[version])) if now is not None else 0
    operation: Operation = "upsert" if live else "delete"
    return Repair(target, copied.memory_id, copied.tenant, copied.user_id, newest, operation, family)


def _changed(family: Family, copied: Truth, repair: Repair) -> bool:
    """Whether what was copied is not the present truth any more."""
    live = repair.operation == "upsert"
    was = copied.version if family is Family.NODE else copied.edges_version
    return live != copied.live or (live and repair.expected_version != was)


def _event(memory_id: int, target: Target, family: Family, *, overwrite: bool) -> Event:
    """What a task needs of an event; this one is in no outbox, and nobody completes it."""
    return Event(
        memory_id,
        _NOBODY,
        memory_id,
        "",
        "",
        0,
        "rebuild",
        family,
        target,
        {},
        0,
        datetime.now(UTC),
        _NOBODY,
        repair=overwrite,
    )
