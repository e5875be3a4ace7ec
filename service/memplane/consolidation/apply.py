"""Applying steps of a plan: one transaction, through the store's own change path (seed `002` section 7.2).

All rows that the steps touch, and the sources of edges to those that go, are locked once, in ascending id. Then every
version is compared, then everything is changed and every event enqueued. If anything is not as it was planned, nothing
happens and the plan is stale: whoever asked reads again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from memplane.consolidation.plan import Step, Update
from memplane.contracts import Scope
from memplane.errors import PluginError
from memplane.outbox.enqueue import Change
from memplane.plugins.postgres.calls import changing
from memplane.plugins.postgres.edges import incoming_sources
from memplane.plugins.postgres.locks import lock_and_read
from memplane.plugins.postgres.rows import Row
from memplane.plugins.postgres.tombstones import bury, condemn
from memplane.plugins.postgres.update import revise
from memplane.plugins.postgres.writing import Writing, deleted
from memplane.plugins.records.batches import prepare_entries, relation_targets
from memplane.schema.committed import Committed
from memplane.schema.database import Connection
from memplane.schema.totals import add_totals
from memplane.signal import Signal

ACTIVITY: Final = "consolidated"
"""The activity of `upkeep_total` that counts by rule what was done."""

_LOCKED: Final = """
m.id, m.version, m.deleted_at IS NULL AS standing, COALESCE(m.expires_at <= clock_timestamp(), FALSE) AS expired
"""
_SUPERSEDED: Final = """
UPDATE {schema}.long_term_memory AS m SET superseded_by = s.survivor_id
FROM unnest($3::bigint[], $4::bigint[]) AS s (id, survivor_id)
WHERE m.tenant = $1 AND m.user_id = $2 AND m.id = s.id
"""
# An application of old may take a delete back (decision 0020): then the memory may be merged away once more.
_CHAIN: Final = """
INSERT INTO {schema}.memory_supersedes
    (tenant, user_id, superseded_id, survivor_id, rule, reason, superseded_version, survivor_version)
SELECT $1, $2, s.* FROM unnest($3::bigint[], $4::bigint[], $5::text[], $6::text[], $7::bigint[], $8::bigint[]) AS s
ON CONFLICT (superseded_id) DO UPDATE
SET survivor_id = excluded.survivor_id, rule = excluded.rule, reason = excluded.reason, created_at = now(),
    superseded_version = excluded.superseded_version, survivor_version = excluded.survivor_version
"""

_STALE: Final = frozenset({"CONFLICT", "NOT_FOUND", "INVALID_INPUT"})
"""What the change path says of entries that were valid when they were planned: the world has moved."""


class PlanConflict(Exception):  # noqa: N818 - reads as what happened
    """Something is no longer as the plan saw it; nothing was changed. `memory_id` names the first that differs."""

    def __init__(self, memory_id: int | None) -> None:
        super().__init__("a memory has changed since it was read" if memory_id is None else f"memory {memory_id}")
        self.memory_id = memory_id


@dataclass(frozen=True, slots=True)
class Applied:
    """What one transaction did."""

    updated: int
    superseded: int
    expired: int
    by_rule: Mapping[str, int]


async def apply(writing: Writing, scope: Scope, steps: Sequence[Step], signal: Signal | None = None) -> Applied:
    """Apply the steps, all or none. Raises `PlanConflict`, STORE_BUSY, STORE_UNAVAILABLE."""
    transaction = _Apply(writing, scope, steps)
    try:
        applied, committed = await changing(writing.database, signal, transaction.run)
    except PluginError as error:
        if error.code in _STALE:
            raise PlanConflict(None) from None
        raise
    writing.committed(committed)
    return applied


class _Apply:
    """One batch; `run` may be called again after a rollback."""

    def __init__(self, writing: Writing, scope: Scope, steps: Sequence[Step]) -> None:
        self._writing = writing
        self._scope = scope
        self._updates = {one.memory_id: one for step in steps for one in step.updates}
        self._deletes = {one.memory_id: one for step in steps for one in step.deletes}
        self._entries = prepare_entries(
            [_entry(one) for one in self._updates.values() if one.changes], require_expected_version=False
        )
        self._by_rule: dict[str, int] = {}
        for step in steps:
            for rule in [one.rule for one in step.deletes] or [step.rule]:
                self._by_rule[rule] = self._by_rule.get(rule, 0) + 1

    async def run(self, connection: Connection) -> tuple[Applied, list[Committed]]:
        await self._lock_and_check(connection)
        changes: list[Change] = []
        revised: list[Committed] = []
        if self._entries:
            changes, revised = await revise(connection, self._writing, self._scope, self._entries)
        buried = await self._bury(connection)
        await self._record(connection, {change.memory_id: change.version for change in changes})
        await self._writing.enqueue(connection, [*changes, *buried])
        await add_totals(connection, self._writing.database, ACTIVITY, self._by_rule)
        superseded = sum(one.superseded_by is not None for one in self._deletes.values())
        applied = Applied(len(changes), superseded, len(self._deletes) - superseded, self._by_rule)
        return applied, [*deleted(buried), *revised]

    async def _lock_and_check(self, connection: Connection) -> None:
        database, scope = self._writing.database, self._scope
        planned = self._updates.keys() | self._deletes.keys()
        sources = await incoming_sources(connection, database, scope, self._deletes)
        targets = relation_targets([entry.metadata for entry in self._entries])
        rows = await lock_and_read(
            connection, database, scope, change=planned | sources, share=targets, columns=_LOCKED
        )
        for memory_id in sorted(planned):
            self._check(memory_id, rows.get(memory_id))
        # Whoever made an edge to one of them since has not been planned for. Under the locks there can be no more.
        merged = [one.memory_id for one in self._deletes.values() if one.superseded_by is not None]
        for source in await incoming_sources(connection, database, scope, merged):
            if source not in planned:
                raise PlanConflict(source)

    def _check(self, memory_id: int, row: Row | None) -> None:
        planned = self._updates.get(memory_id) or self._deletes[memory_id]
        due = memory_id in self._deletes and self._deletes[memory_id].superseded_by is None
        if row is None or not row["standing"] or row["version"] != planned.expected_version or row["expired"] != due:
            raise PlanConflict(memory_id)

    async def _bury(self, connection: Connection) -> list[Change]:
        if not self._deletes:
            return []
        database = self._writing.database
        condemned = await condemn(connection, database, self._scope, self._deletes, chosen=lambda _: True)
        return await bury(connection, database, condemned)

    async def _record(self, connection: Connection, versions: Mapping[int, int]) -> None:
        """`superseded_by` of the tombstones, and the audit chain."""
        pairs = [(one, one.superseded_by) for one in self._deletes.values() if one.superseded_by is not None]
        if not pairs:
            return
        sql, owner = self._writing.database.sql, (self._scope.tenant, self._scope.user)
        ids, survivors = [one.memory_id for one, _ in pairs], [survivor for _, survivor in pairs]
        await connection.execute(sql(_SUPERSEDED), *owner, ids, survivors)
        await connection.execute(
            sql(_CHAIN),
            *owner,
            ids,
            survivors,
            [one.rule for one, _ in pairs],
            [one.reason for one, _ in pairs],
            [one.expected_version for one, _ in pairs],
            [versions.get(survivor, self._updates[survivor].expected_version) for survivor in survivors],
        )


def _entry(update: Update) -> dict[str, Any]:
    entry: dict[str, Any] = {"id": str(update.memory_id), "expectedVersion": update.expected_version}
    if update.metadata is not None:
        entry["metadata"] = update.metadata
    if update.content is not None:
        entry["content"] = update.content
    return entry
