"""What is there: the truth's rows, and what each target holds, read without memplane's reconciler."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import asyncpg
from neo4j import Driver, GraphDatabase
from pymilvus import MilvusClient
from tests.stack import Stack

from chaos.lives import Row

DATABASE = "chaos"
BOOKKEEPING = frozenset({"projection_hash", "edges_version"})
"""What belongs to a generation or to the history of a projection and not to the memory: a rebuild may change it."""


@dataclass(frozen=True, slots=True)
class Held:
    """An object of a target, or what a target should hold: version, content hash, everything else as a digest."""

    version: int
    content_hash: str
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Graph:
    nodes: Mapping[int, Held]
    edges: frozenset[tuple[int, str, int]]


async def connect(stack: Stack) -> asyncpg.Connection[Any]:
    return await asyncpg.connect(stack.dsn(DATABASE), timeout=10)


async def read_rows(stack: Stack) -> list[Row]:
    """All memories, tombstones included."""
    connection = await connect(stack)
    try:
        rows = await connection.fetch(
            "SELECT id, version, content, deleted_at IS NULL AS live, metadata ->> 'origin' AS origin, user_id, key"
            " FROM memplane.long_term_memory ORDER BY id"
        )
    finally:
        await connection.close()
    return [
        Row(str(r["id"]), r["version"], r["content"], r["live"], r["origin"] or "", r["user_id"], r["key"])
        for r in rows
    ]


async def read_truth(stack: Stack) -> Graph:
    """What each target should hold: the live memories and their edges."""
    connection = await connect(stack)
    try:
        rows = await connection.fetch(
            "SELECT id, version, content_hash FROM memplane.long_term_memory WHERE deleted_at IS NULL"
        )
        edges = await connection.fetch(
            "SELECT source_id, type, target_id FROM memplane.memory_edge WHERE deleted_at IS NULL"
        )
    finally:
        await connection.close()
    return Graph({r[0]: Held(r[1], r[2]) for r in rows}, frozenset((e[0], e[1], e[2]) for e in edges))


async def _collection(stack: Stack) -> str:
    connection = await connect(stack)
    try:
        return str(
            await connection.fetchval(
                "SELECT collection FROM memplane.projection_generation WHERE target = 'milvus' AND state = 'active'"
            )
        )
    finally:
        await connection.close()


async def empty(stack: Stack) -> None:
    """Take everything away from both targets, the collection itself included, while the workers run."""
    await asyncio.to_thread(_drop, stack, await _collection(stack))
    with _driver(stack) as driver:
        driver.execute_query("MATCH (n) DETACH DELETE n")


def _drop(stack: Stack, collection: str) -> None:
    client = _client(stack)
    try:
        client.drop_collection(collection)
    finally:
        client.close()


def _client(stack: Stack) -> MilvusClient:
    settings = stack.milvus_settings()
    assert settings.token is not None
    return MilvusClient(uri=settings.uri or "", token=settings.token.get_secret_value(), timeout=30)


def _driver(stack: Stack) -> Driver:
    settings = stack.neo4j_settings()
    assert settings.password is not None
    auth = (settings.user, settings.password.get_secret_value())
    return GraphDatabase.driver(settings.uri or "", auth=auth)


async def read_milvus(stack: Stack) -> dict[int, Held]:
    """Everything in the active collection, vectors included in the digest."""
    return await asyncio.to_thread(_read_milvus, stack, await _collection(stack))


def _read_milvus(stack: Stack, collection: str) -> dict[int, Held]:
    client = _client(stack)
    held: dict[int, Held] = {}
    try:
        pages = client.query_iterator(
            collection, batch_size=1000, filter="memory_id >= 0", output_fields=["*"], consistency_level="Strong"
        )
        while page := pages.next():
            for item in page:
                held[int(item["memory_id"])] = Held(item["version"], item["content_hash"], _digest(item))
        pages.close()
    finally:
        client.close()
    return held


def read_neo4j(stack: Stack) -> Graph:
    """All nodes with a version, and all edges. Bare nodes, which only hold an edge's end, are left out."""
    with _driver(stack) as driver:
        nodes, _, _ = driver.execute_query("MATCH (m:Memory) WHERE m.version IS NOT NULL RETURN properties(m) AS m")
        edges, _, _ = driver.execute_query("MATCH (a:Memory)-[r:RELATES]->(b) RETURN a.memory_id, r.type, b.memory_id")
    held = {}
    for record in nodes:
        node = record["m"]
        held[int(node["memory_id"])] = Held(node["version"], node["content_hash"], _digest(node))
    return Graph(held, frozenset((int(e[0]), str(e[1]), int(e[2] or 0)) for e in edges))


def _digest(values: Mapping[str, Any]) -> str:
    text = "\n".join(f"{name}={values[name]}" for name in sorted(values) if name not in BOOKKEEPING)
    return hashlib.sha256(text.encode()).hexdigest()


def compare(name: str, truth: Mapping[int, Held], held: Mapping[int, Held]) -> list[str]:
    """Differences of ids, versions and content hashes; each told once."""
    found = [f"{name}: memory {one} is missing" for one in sorted(truth.keys() - held.keys())]
    found += [f"{name}: memory {one} should not be there" for one in sorted(held.keys() - truth.keys())]
    for one in sorted(truth.keys() & held.keys()):
        want, got = truth[one], held[one]
        if (want.version, want.content_hash) != (got.version, got.content_hash):
            found.append(f"{name}: memory {one} has version {got.version}, the truth {want.version}, or another hash")
    return found
