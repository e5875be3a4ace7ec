"""The collection of a generation: made when it is missing, refused when it is somebody else's (design section 5)."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from memplane.errors import IdentityError
from memplane.projections.errors import ProjectionMissing, ProjectionRefused
from memplane.projections.milvus_client import MilvusConnection
from memplane.projections.milvus_row import TEXT_BYTES

if TYPE_CHECKING:
    from memplane.projections.generation import Generation

INDEX: Mapping[str, Any] = {
    "index_type": "HNSW",
    "metric_type": "COSINE",
    "params": {"M": 16, "efConstruction": 200},
}
"""The vector index, on a server and in Milvus Lite."""

LOAD_SECONDS = 120.0
"""Deadline for creating, indexing and loading a collection; a large one loads for a while after a restart."""

_TEXTS = ("backend", "tenant", "user_id", "content_hash", "projection_hash", "category", "slot_hint")
_INTEGERS = ("version", "expires_at")
_JSONS = ("tags", "metadata")


async def ensure_collection(milvus: MilvusConnection, generation: Generation, *, check_rows: bool = True) -> None:
    """Make the collection, or check it; then its index, and load it. Safe against other processes that do the same.

    `check_rows`: also refuse a collection that holds a row of another backend, as whoever writes to it must.
    Raises `IdentityError` when the collection of that name has another owner, model, dimension or other fields.
    """
    described = await _describe(milvus, generation.collection)
    if described is None:
        # Another process may make it at the same moment; then it is checked like any other.
        with contextlib.suppress(ProjectionRefused):
            await _create(milvus, generation)
        described = await _describe(milvus, generation.collection)
        if described is None:
            raise ProjectionMissing("milvus", generation.collection)
    check_description(described, generation)
    await _index_and_load(milvus, generation)
    if check_rows:
        await _check_rows(milvus, generation)


async def drop_collection(milvus: MilvusConnection, generation: Generation) -> None:
    """Drop the generation's collection, if it exists and is the generation's. Raises `IdentityError` otherwise."""
    described = await _describe(milvus, generation.collection)
    if described is not None:
        check_description(described, generation)
        await milvus.call("drop_collection", generation.collection)


def check_description(described: Mapping[str, Any], generation: Generation) -> None:
    """Raise `IdentityError` unless a collection, as Milvus describes it, is the generation's."""
    name = generation.collection
    stated = {key: str(value) for key, value in dict(described.get("properties") or {}).items()}
    for key, expected in generation.properties.items():
        if stated.get(key) != expected:
            found = repr(stated[key]) if key in stated else "nothing"
            raise IdentityError(f"Collection {name} states {found} as {key}, not {expected!r}: it is left alone")
    found_fields = {field["name"]: field for field in described["fields"]}
    expected_fields = dict(kinds())
    for field, kind in expected_fields.items():
        if field not in found_fields or int(found_fields[field]["type"]) != kind:
            raise IdentityError(
                f"Collection {name} lacks the field {field}, or it is of another type: it is left alone"
            )
    if extra := sorted(set(found_fields) - set(expected_fields)):
        raise IdentityError(f"Collection {name} has fields that memplane does not know ({', '.join(extra)})")
    dimensions = int(found_fields["vector"]["params"]["dim"])
    if dimensions != generation.dimensions:
        raise IdentityError(f"Collection {name} holds {dimensions} dimensions, not {generation.dimensions}")


async def _describe(milvus: MilvusConnection, name: str) -> Mapping[str, Any] | None:
    try:
        described: Mapping[str, Any] = await milvus.call("describe_collection", name)
    except ProjectionMissing:
        return None
    return described


@lru_cache(maxsize=1)
def kinds() -> tuple[tuple[str, int], ...]:
    """Name and `DataType` of each field of a row."""
    from pymilvus import DataType

    return (
        ("memory_id", int(DataType.INT64)),
        *((name, int(DataType.VARCHAR)) for name in _TEXTS),
        *((name, int(DataType.INT64)) for name in _INTEGERS),
        ("importance", int(DataType.DOUBLE)),
        *((name, int(DataType.JSON)) for name in _JSONS),
        ("vector", int(DataType.FLOAT_VECTOR)),
    )


async def _create(milvus: MilvusConnection, generation: Generation) -> None:
    from pymilvus import DataType, MilvusClient

    schema = MilvusClient.create_schema(
        auto_id=False, enable_dynamic_field=False, description=f"memplane backend {generation.backend}"
    )
    for name, kind in kinds():
        extra: dict[str, Any] = {}
        if name == "memory_id":
            extra["is_primary"] = True
        elif name in _TEXTS:
            extra["max_length"] = TEXT_BYTES
        elif name == "vector":
            extra["dim"] = generation.dimensions
        schema.add_field(name, DataType(kind), **extra)
    await milvus.call(
        "create_collection",
        generation.collection,
        schema=schema,
        consistency_level="Strong",
        properties=generation.properties,
        timeout=LOAD_SECONDS,
    )


async def _index_and_load(milvus: MilvusConnection, generation: Generation) -> None:
    from pymilvus import MilvusClient

    if "vector" not in await milvus.call("list_indexes", generation.collection):
        parameters = MilvusClient.prepare_index_params()
        parameters.add_index("vector", index_name="vector", **INDEX)
        # Loading waits for what it needs of the index, so nobody has to wait here until it is built.
        await milvus.call("create_index", generation.collection, parameters, timeout=LOAD_SECONDS, sync=False)
    await milvus.call("load_collection", generation.collection, timeout=LOAD_SECONDS)


async def _check_rows(milvus: MilvusConnection, generation: Generation) -> None:
    foreign = await milvus.call(
        "query",
        generation.collection,
        filter=f'backend != "{generation.backend}"',
        output_fields=["memory_id"],
        limit=1,
        consistency_level="Bounded",
    )
    if foreign:
        raise IdentityError(f"Collection {generation.collection} holds memories of another backend: it is left alone")
