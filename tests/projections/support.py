"""What the tests of projections share: a tiny embedding provider, tasks made by hand, and dumps of the targets."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

from memplane.outbox.events import Edge, Event, EventType, Family, Target, Task, Truth
from memplane.projections.embedding import StoredEmbeddings
from memplane.projections.milvus import MilvusProjection
from memplane.projections.milvus_row import SCALARS
from memplane.projections.neo4j import Neo4jProjection
from memplane.schema.database import Database
from memplane.signal import Signal

_numbers = itertools.count(1)


class Letters:
    """Vectors from digests of the text: offline, deterministic, distinct. Counts what it embeds."""

    def __init__(self, dimensions: int = 8, model: str = "letters", revision: str = "1") -> None:
        self.dimensions = dimensions
        self.model = model
        self.revision = revision
        self.embedded: list[str] = []
        self.failure: BaseException | None = None

    async def embed(self, contents: Sequence[str], *, purpose: str, signal: Signal | None = None) -> list[list[float]]:
        if self.failure is not None:
            raise self.failure
        self.embedded.extend(contents)
        return [self.vector(text) for text in contents]

    def vector(self, text: str) -> list[float]:
        raw = hashlib.shake_128(text.encode()).digest(self.dimensions)
        values = [byte - 127.5 for byte in raw]
        norm = math.sqrt(sum(value * value for value in values))
        return [value / norm for value in values]


async def embed(provider: Any, texts: Sequence[str], batch_size: int) -> Sequence[Sequence[float]]:
    """Stands in for `memplane.retrieval.embed_contents`, a higher layer."""
    vectors: list[list[float]] = []
    for start in range(0, len(texts), batch_size):
        vectors += await provider.embed(texts[start : start + batch_size], purpose="document")
    return vectors


def stored_embeddings(database: Database, provider: Letters | None = None) -> StoredEmbeddings:
    return StoredEmbeddings(database, provider or Letters(), embed)  # type: ignore[arg-type]


def truth(memory_id: int, version: int = 1, *, live: bool = True, text: str | None = None, **fields: Any) -> Truth:
    """A truth as the worker would read it."""
    content = text if text is not None else f"memory {memory_id} version {version}"
    return Truth(
        memory_id,
        live,
        version,
        tenant=fields.pop("tenant", "acme"),
        user_id=fields.pop("user_id", "ann"),
        content_hash=fields.pop("content_hash", hashlib.sha256(f"{content}/{fields}".encode()).hexdigest()),
        text=content,
        text_hash=hashlib.sha256(content.encode()).digest(),
        **fields,
    )


def with_edges(source: Truth, version: int, *edges: tuple[int, str]) -> Truth:
    """The same memory with its live edges, given as (target, type), all at this edge version."""
    return replace(
        source,
        edges_version=version,
        edges=tuple(edge(source.memory_id, target, kind, version) for target, kind in edges),
    )


def edge(source: int, target: int, kind: str, version: int) -> Edge:
    return Edge(source, target, kind, version, hashlib.sha256(f"{source} {kind} {target}".encode()).hexdigest())


def task(state: Truth, target: Target = Target.MILVUS, *, version: int | None = None, repair: bool = False) -> Task:
    """A claimed event for `state`; of family edges when the truth carries edges."""
    family = Family.NODE if state.edges is None else Family.EDGES
    kinds = {
        (Target.MILVUS, Family.NODE): EventType.UPSERT_VECTOR,
        (Target.NEO4J, Family.NODE): EventType.UPSERT_NODE,
        (Target.NEO4J, Family.EDGES): EventType.UPSERT_EDGES,
    }
    number = next(_numbers)
    event = Event(
        number,
        uuid4(),
        state.memory_id,
        state.tenant,
        state.user_id,
        state.version if version is None else version,
        kinds[target, family],
        family,
        target,
        {"edges_version": state.edges_version},
        0,
        datetime.now(UTC),
        uuid4(),
        repair=repair,
    )
    return Task(event, state)


async def rows(projection: MilvusProjection) -> dict[int, dict[str, Any]]:
    """Every row of the collection, by memory id, read with Strong consistency."""
    generation = await projection.generation()
    found = await projection.milvus.call(
        "query",
        generation.collection,
        filter="memory_id >= 0",
        output_fields=[*SCALARS, "projection_hash", "vector"],
        consistency_level="Strong",
        limit=16000,
    )
    return {row["memory_id"]: dict(row) for row in found}


async def graph(projection: Neo4jProjection, backend: UUID | str) -> tuple[dict[int, dict[str, Any]], set[Any]]:
    """Every node of the backend by memory id, and every outgoing edge as (source, type, target, version, hash)."""
    nodes = await projection.neo4j.run(
        "MATCH (m:Memory {backend: $backend}) RETURN properties(m) AS properties", {"backend": str(backend)}
    )
    edges = await projection.neo4j.run(
        """
        MATCH (s:Memory {backend: $backend})-[r:RELATES]->(t:Memory)
        RETURN s.memory_id AS source, r.type AS type, t.memory_id AS target, r.version AS version,
               r.relation_hash AS hash
        """,
        {"backend": str(backend)},
    )
    return (
        {node["properties"]["memory_id"]: node["properties"] for node in nodes},
        {(row["source"], row["type"], row["target"], row["version"], row["hash"]) for row in edges},
    )


def without(mapping: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in mapping.items() if key not in names}
