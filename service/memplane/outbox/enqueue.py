"""How events get into the outbox: in the transaction of the change, by whoever holds the memory's lock.

At most one event of a (target, memory, family) is pending. So the inserter first supersedes the older one (it ends
`processed` with `superseded_by`), then inserts the new one: two statements, because the partial unique index is
checked row by row inside one. A writer that meets an event which is just being claimed waits for that claim to
commit; the safety of `outbox/claim.py` rests on this wait.

Source: seed `002` sections 5.2, 5.3, 10.2; design section 6.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal
from uuid import UUID

from memplane.outbox.channel import outbox_channel
from memplane.outbox.events import EventType, Family, Target
from memplane.outbox.locks import lock_memories
from memplane.schema.database import Connection, Database

Operation = Literal["upsert", "delete"]


@dataclass(frozen=True, slots=True)
class Route:
    """The events of one family that a target is sent."""

    target: Target
    family: Family
    upsert: EventType
    delete: EventType

    def event_type(self, operation: Operation) -> EventType:
        return self.upsert if operation == "upsert" else self.delete


ROUTES: tuple[Route, ...] = (
    Route(Target.MILVUS, Family.NODE, EventType.UPSERT_VECTOR, EventType.DELETE_VECTOR),
    Route(Target.NEO4J, Family.NODE, EventType.UPSERT_NODE, EventType.DELETE_NODE),
    Route(Target.NEO4J, Family.EDGES, EventType.UPSERT_EDGES, EventType.DELETE_EDGES),
    Route(Target.LTM_CACHE, Family.NODE, EventType.INVALIDATE_CACHE, EventType.INVALIDATE_CACHE),
)


@dataclass(frozen=True, slots=True)
class Change:
    """One memory that a transaction has changed. `version` and `content_hash` are the new ones."""

    memory_id: int
    tenant: str
    user_id: str
    version: int
    content_hash: str
    operation: Operation
    node: bool = True
    """Events of family node, for every enabled target."""
    edges: bool = False
    """An event of family edges, for targets that hold edges."""
    edges_version: int = 0
    fresh: bool = False
    """Inserted in this transaction under a new id: no older event can exist, so none is looked for."""


@dataclass(frozen=True, slots=True)
class Repair:
    """A difference between truth and projection that is to be removed (reconciler, late workers).

    `expected_version` is the version of the truth that was seen: of the memory, or of its edges for family edges.
    """

    target: Target
    memory_id: int
    tenant: str
    user_id: str
    expected_version: int
    operation: Operation
    family: Family
    late_claim: UUID | None = None
    """Token of the lost claim of a late worker. Its repair must run even while another repair of the memory does,
    because that one may have been overwritten: so the token is part of the key."""

    @property
    def key(self) -> str:
        """Unique while unfinished (seed `002` section 10.2)."""
        kind = "repair" if self.late_claim is None else f"late:{self.late_claim}"
        return f"{self.target}:{self.memory_id}:{self.expected_version}:{self.operation}:{self.family}:{kind}"


# Locked in the order of their ids; a probe per pair whatever the statistics say (migration 0004). A reserved id is
# drawn for each superseded event, so that its successor is known before it is inserted.
_SUPERSEDE = """
UPDATE {schema}.memory_outbox AS o
SET status = 'processed', processed_at = clock_timestamp(), superseded_by = nextval('{schema}.memory_outbox_id_seq')
WHERE o.id = ANY (ARRAY (
    SELECT l.id FROM {schema}.memory_outbox AS l
    WHERE l.status = 'pending' AND l.id = ANY (ARRAY (
        SELECT older.id
        FROM unnest($1::bigint[], $2::text[], $3::text[]) AS s (memory_id, target, family)
        CROSS JOIN LATERAL (
            SELECT p.id FROM {schema}.memory_outbox AS p
            WHERE p.target = s.target AND p.aggregate_id = s.memory_id AND p.family = s.family AND p.status = 'pending'
            LIMIT 1) AS older))
    ORDER BY l.id FOR UPDATE))
RETURNING o.aggregate_id, o.target, o.family, o.superseded_by
"""

_COLUMNS = (
    "event_id, aggregate_id, user_id, tenant, aggregate_version, event_type, family, target, payload, traceparent"
)

_CHANGES = """
    SELECT c.*, r.target, r.family, r.upsert, r.delete,
           CASE WHEN r.family = 'edges'
                THEN c.payload || jsonb_build_object('edges_version', c.edges_version) ELSE c.payload END AS body
    FROM (
        SELECT u.*, jsonb_build_object('memory_id', u.memory_id, 'version', u.version,
                                       'content_hash', u.content_hash, 'operation', u.operation) AS payload
        FROM unnest($1::bigint[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::text[],
                    $7::boolean[], $8::boolean[], $9::bigint[])
             AS u (memory_id, user_id, tenant, version, content_hash, operation, node, edges, edges_version)
        OFFSET 0
    ) AS c
    CROSS JOIN unnest($10::text[], $11::text[], $12::text[], $13::text[]) AS r (target, family, upsert, delete)
    WHERE CASE r.family WHEN 'node' THEN c.node ELSE c.edges END
"""

_VALUES = """
gen_random_uuid(), e.memory_id, e.user_id, e.tenant, e.version,
CASE e.operation WHEN 'upsert' THEN e.upsert ELSE e.delete END, e.family, e.target, e.body, $14::text
"""

_INSERT_FRESH = f"""
INSERT INTO {{schema}}.memory_outbox ({_COLUMNS})
SELECT {_VALUES} FROM ({_CHANGES}) AS e
"""

_INSERT_SUCCESSORS = f"""
INSERT INTO {{schema}}.memory_outbox (id, {_COLUMNS})
SELECT COALESCE(s.id, nextval('{{schema}}.memory_outbox_id_seq')), {_VALUES}
FROM ({_CHANGES}) AS e
LEFT JOIN unnest($15::bigint[], $16::bigint[], $17::text[], $18::text[]) AS s (id, memory_id, target, family)
       ON s.memory_id = e.memory_id AND s.target = e.target AND s.family = e.family
"""


async def enqueue(
    connection: Connection,
    database: Database,
    changes: Sequence[Change],
    *,
    targets: Collection[Target],
    traceparent: str | None = None,
) -> None:
    """Insert the events of `changes` for the enabled `targets`; older pending events are superseded.

    Call it inside the transaction of the change while the memories' row locks are held. One statement when every
    change is fresh, two otherwise; workers are told after the commit.
    """
    merged = _merge(changes)
    routes = [route for route in ROUTES if route.target in targets]
    if not merged or not routes:
        return
    successors = await _supersede(connection, database, _pairs(merged, routes))
    arguments = (*_change_columns(merged), *_route_columns(routes), traceparent)
    if successors:
        await connection.execute(database.sql(_INSERT_SUCCESSORS), *arguments, *_successor_columns(successors))
    else:
        await connection.execute(database.sql(_INSERT_FRESH), *arguments)
    database.notify_after_commit(connection, outbox_channel(database), {route.target.value for route in routes})


Pair = tuple[int, str, str]
"""memory_id, target, family."""


def _merge(changes: Sequence[Change]) -> list[Change]:
    """One change per memory: the last one, with the families of all of them."""
    by_id: dict[int, Change] = {}
    for change in changes:
        earlier = by_id.get(change.memory_id)
        if earlier is None:
            by_id[change.memory_id] = change
            continue
        by_id[change.memory_id] = replace(
            change,
            node=change.node or earlier.node,
            edges=change.edges or earlier.edges,
            edges_version=max(change.edges_version, earlier.edges_version),
            fresh=change.fresh and earlier.fresh,
        )
    return list(by_id.values())


def _pairs(changes: Sequence[Change], routes: Sequence[Route]) -> list[Pair]:
    """Where an older event may be pending."""
    return [
        (change.memory_id, route.target.value, route.family.value)
        for change in changes
        if not change.fresh
        for route in routes
        if (change.node if route.family is Family.NODE else change.edges)
    ]


async def _supersede(connection: Connection, database: Database, pairs: Sequence[Pair]) -> dict[Pair, int]:
    """End the pending events of `pairs`; returns the ids that are reserved for their successors."""
    if not pairs:
        return {}
    memory_ids, targets, families = zip(*pairs, strict=True)
    rows = await connection.fetch(database.sql(_SUPERSEDE), list(memory_ids), list(targets), list(families))
    return {(row["aggregate_id"], row["target"], row["family"]): row["superseded_by"] for row in rows}


def _change_columns(changes: Sequence[Change]) -> tuple[list[object], ...]:
    return (
        [change.memory_id for change in changes],
        [change.user_id for change in changes],
        [change.tenant for change in changes],
        [change.version for change in changes],
        [change.content_hash for change in changes],
        [change.operation for change in changes],
        [change.node for change in changes],
        [change.edges for change in changes],
        [change.edges_version for change in changes],
    )


def _route_columns(routes: Sequence[Route]) -> tuple[list[str], ...]:
    return (
        [route.target.value for route in routes],
        [route.family.value for route in routes],
        [route.upsert.value for route in routes],
        [route.delete.value for route in routes],
    )


def _successor_columns(successors: dict[Pair, int]) -> tuple[list[object], ...]:
    pairs = list(successors)
    return (
        list(successors.values()),
        [memory_id for memory_id, _, _ in pairs],
        [target for _, target, _ in pairs],
        [family for _, _, family in pairs],
    )


_UNFINISHED_KEYS = """
SELECT repair_key FROM {schema}.memory_outbox
WHERE repair_key = ANY($1::text[]) AND status IN ('pending', 'processing')
"""

_INSERT_REPAIRS = f"""
INSERT INTO {{schema}}.memory_outbox (id, repair_key, {_COLUMNS})
SELECT COALESCE(r.id, nextval('{{schema}}.memory_outbox_id_seq')), r.key, gen_random_uuid(), r.memory_id, r.user_id,
       r.tenant, r.version, r.event_type, r.family, r.target,
       jsonb_build_object('memory_id', r.memory_id, 'version', r.version, 'content_hash', m.content_hash,
                          'operation', r.operation, 'repair', TRUE), NULL
FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::text[], $5::text[], $6::bigint[], $7::text[], $8::text[],
            $9::text[], $10::text[])
     AS r (id, key, memory_id, user_id, tenant, version, event_type, family, target, operation)
LEFT JOIN {{schema}}.long_term_memory AS m ON m.id = r.memory_id
"""


async def enqueue_repairs(connection: Connection, database: Database, repairs: Iterable[Repair]) -> int:
    """Insert repair events; returns how many. Needs a transaction, and takes the memories' locks itself.

    A repair whose key is unfinished is left out. Of several repairs of one (target, memory, family) the one with the
    highest expected version is inserted; an older pending event of the pair is superseded, like by any other change.
    """
    chosen: dict[Pair, Repair] = {}
    for repair in repairs:
        pair = (repair.memory_id, repair.target.value, repair.family.value)
        if pair not in chosen or chosen[pair].expected_version < repair.expected_version:
            chosen[pair] = repair
    if not chosen:
        return 0
    await lock_memories(connection, database, (memory_id for memory_id, _, _ in chosen))
    keys = [repair.key for repair in chosen.values()]
    unfinished = {row["repair_key"] for row in await connection.fetch(database.sql(_UNFINISHED_KEYS), keys)}
    wanted = {pair: repair for pair, repair in chosen.items() if repair.key not in unfinished}
    if not wanted:
        return 0
    successors = await _supersede(connection, database, list(wanted))
    await connection.execute(
        database.sql(_INSERT_REPAIRS),
        [successors.get(pair) for pair in wanted],
        *_repair_columns(list(wanted.values())),
    )
    told = {repair.target.value for repair in wanted.values()}
    database.notify_after_commit(connection, outbox_channel(database), told)
    return len(wanted)


def _repair_columns(repairs: Sequence[Repair]) -> tuple[list[object], ...]:
    return (
        [repair.key for repair in repairs],
        [repair.memory_id for repair in repairs],
        [repair.user_id for repair in repairs],
        [repair.tenant for repair in repairs],
        [repair.expected_version for repair in repairs],
        [_repair_type(repair).value for repair in repairs],
        [repair.family.value for repair in repairs],
        [repair.target.value for repair in repairs],
        [repair.operation for repair in repairs],
    )


def _repair_type(repair: Repair) -> EventType:
    for route in ROUTES:
        if route.target is repair.target and route.family is repair.family:
            return route.event_type(repair.operation)
    raise ValueError(f"{repair.target} holds no {repair.family}")
