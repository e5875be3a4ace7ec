"""Outbox events that no writer of ours would make: a worker must get past each of them and lose nothing else.

They go straight into the table, as a broken tool or a hand would put them there. Where a healthy event of the same
memory waits, the table's own constraint keeps the poison out, and nothing is inserted.
"""

from __future__ import annotations

import random
from typing import Any
from uuid import uuid4

import asyncpg

FAR = 1_000_000_000

_INSERT = """
INSERT INTO memplane.memory_outbox
    (event_id, aggregate_id, user_id, tenant, aggregate_version, event_type, family, target, payload, status, attempts,
     locked_at, locked_until, locked_by)
VALUES ($1, $2, $3, $4, $5, $6, 'node', $7, $8::jsonb, $9, $10, $11, $12, $13)
ON CONFLICT DO NOTHING
RETURNING id
"""

_TYPES = {"milvus": "upsert_memory_vector", "neo4j": "upsert_memory_graph_node"}


async def poison(connection: asyncpg.Connection[Any], kind: str, dice: random.Random) -> bool:
    """Insert one poisoned event; False when it was kept out."""
    memory = await connection.fetchrow(
        "SELECT id, tenant, user_id, version FROM memplane.long_term_memory ORDER BY random() LIMIT 1"
    )
    target = dice.choice(sorted(_TYPES))
    number, tenant, user, version = tuple(memory) if memory is not None else (FAR, "acme", "ann", 1)
    event_type, payload, status, attempts = _TYPES[target], "{}", "pending", 0
    locked: tuple[Any, Any, Any] = (None, None, None)
    match kind:
        case "unknown memory":
            number = FAR + dice.randrange(1000)
        case "version of the future":
            version += FAR
        case "unreadable payload":
            payload = dice.choice(["null", "[]", '"nonsense"', '{"version": "seven", "memory_id": null}'])
        case "claimed by nobody":
            # In flight, with no token and perhaps no lease: whoever took it never was.
            status = "processing"
            past = await connection.fetchval("SELECT now() - interval '1 hour'")
            locked = (past, dice.choice([past, None]), "nobody")
        case "nearly dead":
            attempts = 9
        case "of no type":
            event_type = "upsert_memory_nothing"
        case _:
            raise ValueError(kind)
    arguments = (uuid4(), number, user, tenant, version, event_type, target, payload, status, attempts, *locked)
    return await connection.fetchval(_INSERT, *arguments) is not None
