"""What the worker reads right before the call: live, tombstoned, expired or gone; edges of one snapshot."""

from __future__ import annotations

from memplane.outbox.events import Edge, Event, Needs, Target
from memplane.outbox.truth import read_truths
from memplane.schema.database import Database
from tests.outbox.world import MILVUS, NEO4J, change, claim_some, create, execute

ALL = Needs(fields=True, metadata=True, text=True)


async def _read(database: Database, target: Target, needs: Needs) -> dict[int, object]:
    events: list[Event] = await claim_some(database, target)
    truths = await read_truths(database, events, needs)
    return {event.memory_id: truths[event.id] for event in events}


async def test_live_tombstoned_expired_and_gone(database: Database) -> None:
    live, dead, expired, gone = await create(database, 4)
    await change(database, [dead], operation="delete")
    await execute(
        database, "UPDATE {schema}.long_term_memory SET expires_at = now() - interval '1 s' WHERE id = $1", expired
    )
    await execute(database, "DELETE FROM {schema}.long_term_memory WHERE id = $1", gone)
    truths = await _read(database, Target.MILVUS, Needs(fields=False))
    found = {id_: (truth.live, truth.version) for id_, truth in truths.items()}  # type: ignore[attr-defined]
    assert found == {live: (True, 1), dead: (False, 2), expired: (False, 1), gone: (False, 0)}


async def test_only_what_is_needed_is_read(database: Database) -> None:
    [memory] = await create(database)
    await execute(
        database,
        "UPDATE {schema}.long_term_memory SET importance = 0.5, category = 'c', tags = ARRAY['a', 'b'], "
        """slot_hint = 's', metadata = '{"k": [1, 2.5]}', expires_at = now() + interval '1 h' WHERE id = $1""",
        memory,
    )
    events = await claim_some(database)
    everything = (await read_truths(database, events, ALL))[events[0].id]
    assert (everything.importance, everything.category, everything.slot_hint) == (0.5, "c", "s")
    assert list(everything.tags or ()) == ["a", "b"]
    assert everything.metadata == {"k": [1, 2.5]}
    assert everything.text == "text 1"
    assert len(everything.text_hash or b"") == 32
    assert everything.expires_at is not None
    assert everything.edges is None
    little = (await read_truths(database, events, Needs(fields=False)))[events[0].id]
    assert (little.version, little.content_hash, little.tenant, little.user_id) == (1, "h1", "t", "u")
    assert (little.category, little.metadata, little.text) == (None, None, None)


async def test_edges_are_read_for_edge_events_only(database: Database) -> None:
    source, first, second, bare = await create(database, 4, targets=NEO4J | MILVUS, edges=True)
    for target, kind, deleted in ((second, "knows", False), (first, "likes", False), (first, "old", True)):
        await execute(
            database,
            "INSERT INTO {schema}.memory_edge (source_id, target_id, type, tenant, user_id, version, relation_hash, "
            "deleted_at) VALUES ($1, $2, $3, 't', 'u', 2, 'r', CASE WHEN $4 THEN now() END)",
            source, target, kind, deleted,
        )  # fmt: skip
    nodes = await _read(database, Target.NEO4J, Needs())
    assert {truth.edges for truth in nodes.values()} == {None}  # type: ignore[attr-defined]
    await execute(
        database,
        "UPDATE {schema}.memory_outbox SET status = 'processed', claim_token = NULL WHERE status = 'processing'",
    )
    await execute(database, "UPDATE {schema}.long_term_memory SET deleted_at = now() WHERE id = $1", second)
    edges = await _read(database, Target.NEO4J, Needs())
    assert edges[source].edges == (Edge(source, first, "likes", 2, "r"), Edge(source, second, "knows", 2, "r"))  # type: ignore[attr-defined]
    assert edges[bare].edges == ()  # type: ignore[attr-defined]
    assert edges[second].edges == ()  # type: ignore[attr-defined]
    assert not edges[second].live  # type: ignore[attr-defined]
