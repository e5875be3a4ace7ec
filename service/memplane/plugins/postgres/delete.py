"""DELETE and expiry: memories become tombstones, which keep their rows until they are purged."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from memplane.contracts import JSON, Scope
from memplane.outbox.enqueue import Change
from memplane.outbox.events import Target
from memplane.plugins.postgres.calls import changing
from memplane.plugins.postgres.rows import Row
from memplane.plugins.postgres.tombstones import bury, condemn
from memplane.plugins.postgres.writing import Writing, deleted
from memplane.plugins.records import batches
from memplane.schema.committed import OnCommit
from memplane.schema.database import Connection, Database
from memplane.schema.ids import parse_id
from memplane.signal import Signal

_DUE: Final = """
SELECT id FROM {schema}.long_term_memory
WHERE deleted_at IS NULL AND expires_at <= clock_timestamp() ORDER BY expires_at LIMIT $1
"""


async def delete(
    writing: Writing,
    scope: Scope,
    ids: Sequence[str],
    expected_versions: Mapping[str, JSON] | None,
    signal: Signal | None,
) -> list[str]:
    """Delete all live memories among `ids` or, on a CONFLICT, none; returns the ids that were live, in their order.

    Expired memories count as absent; the sweep buries them.
    """
    expected = batches.expected_versions(ids, expected_versions, required=writing.require_expected_version)
    wanted = {number: text for text in ids if (number := parse_id(text)) is not None}
    if not wanted:
        return []

    async def run(connection: Connection) -> list[Change]:
        condemned = await condemn(connection, writing.database, scope, wanted, chosen=_not_expired)
        for row in condemned.rows:
            batches.check_expected(str(row["id"]), row["version"], expected.get(wanted[row["id"]]))
        changes = await bury(connection, writing.database, condemned)
        await writing.enqueue(connection, changes)
        return changes

    committed = deleted(await changing(writing.database, signal, run))
    writing.committed(committed)
    gone = {entry.memory_id for entry in committed}
    return [text for number, text in wanted.items() if number in gone]


def _not_expired(row: Row) -> bool:
    return row["expired"] is not True


def _expired(row: Row) -> bool:
    return row["expired"] is True


async def expire(
    database: Database, *, targets: Collection[Target], limit: int = 500, on_commit: OnCommit | None = None
) -> int:
    """Bury up to `limit` memories of any scope whose time is over; returns how many. Safe to run in parallel.

    Expired memories are absent for every reader already; this removes them from the projections. Call it again at once
    while it returns `limit`.
    """
    writing = Writing(database, frozenset(targets), on_commit=on_commit)

    async def run(connection: Connection) -> list[Change]:
        due = [row["id"] for row in await connection.fetch(database.sql(_DUE), limit)]
        if not due:
            return []
        condemned = await condemn(connection, database, None, due, chosen=_expired)
        changes = await bury(connection, database, condemned)
        await writing.enqueue(connection, changes)
        return changes

    committed = deleted(await changing(database, None, run))
    writing.committed(committed)
    return len(committed)
