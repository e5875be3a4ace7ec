"""A memory as a node of the graph: its properties and their digest (design section 5).

    (:Memory {backend, memory_id, tenant, user_id, version, content_hash, projection_hash,
              importance, category, tags, slot_hint, expires_at})
    (:Memory)-[:RELATES {backend, type, version, relation_hash}]->(:Memory)

Properties that are null in the truth are absent. `expires_at` is in microseconds since 1970. A relation's type is a
property, since it is the user's text and a type name cannot be a parameter. A node without `version` is bare: the end
of an edge whose own memory is not projected (not yet, or no more); it has backend and memory_id alone. A source also
carries `edges_version`, the version of the edge set that was projected last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from memplane.contracts import JSON
from memplane.outbox.events import Truth
from memplane.projections.generation import Generation
from memplane.projections.hash import projection_hash
from memplane.projections.milvus_row import microseconds

PROPERTIES: tuple[str, ...] = (
    "memory_id",
    "backend",
    "tenant",
    "user_id",
    "version",
    "content_hash",
    "importance",
    "category",
    "tags",
    "slot_hint",
    "expires_at",
)
"""The properties that `projection_hash` covers, in its order."""


FIELDS: tuple[str, ...] = (*PROPERTIES, "projection_hash")
"""What a node holds of its memory; `edges_version` is beside it."""

HASH = FIELDS.index("projection_hash")

Node: TypeAlias = tuple[JSON, ...]
"""The values of `FIELDS`, None for what is absent."""


def node_of(truth: Truth, generation: Generation) -> Node:
    """A live memory's node, digest included."""
    values: list[JSON] = [
        truth.memory_id,
        generation.backend,
        truth.tenant,
        truth.user_id,
        truth.version,
        truth.content_hash,
        # Never -0.0: the graph takes it for 0.0 and would keep whichever came first.
        None if truth.importance is None else float(truth.importance) + 0.0,
        truth.category,
        None if truth.tags is None else list(truth.tags),
        truth.slot_hint,
        None if truth.expires_at is None else microseconds(truth.expires_at),
    ]
    return (*values, projection_hash(generation.space, values))


def bare_node(backend: str, memory_id: int) -> Node:
    """The node of a memory that is not projected."""
    return (memory_id, backend, *[None] * (len(FIELDS) - 2))


def properties(truth: Truth, generation: Generation) -> dict[str, JSON]:
    """The properties of a live memory's node, digest included; those that are null are left out."""
    node = zip(FIELDS, node_of(truth, generation), strict=True)
    return {name: value for name, value in node if value is not None}


def columns(nodes: Sequence[Node]) -> dict[str, list[JSON]]:
    """One list per field but `backend`, as the queries take them: half of what a map per node costs to encode.

    A column of equal values has one element: the queries index it by the position modulo its length.
    """
    by_name = dict(zip(FIELDS, zip(*nodes, strict=True), strict=True))
    return {name: _column(values) for name, values in by_name.items() if name != "backend"}


def _column(values: Sequence[JSON]) -> list[JSON]:
    first = values[0]
    # Not so for floats, where 0.0 equals -0.0, which has another digest.
    same = not isinstance(first, float) and values.count(first) == len(values)
    return [first] if same else list(values)


def digest(node: Mapping[str, Any], space: str) -> str:
    """`projection_hash` of a node, built from the truth or read from the graph."""
    return projection_hash(space, [node.get(name) for name in PROPERTIES])
