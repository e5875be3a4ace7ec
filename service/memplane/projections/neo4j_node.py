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

from collections.abc import Mapping
from typing import Any

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


def properties(truth: Truth, generation: Generation) -> dict[str, JSON]:
    """The properties of a live memory's node, digest included; those that are null are left out."""
    node: dict[str, JSON] = {
        "memory_id": truth.memory_id,
        "backend": generation.backend,
        "tenant": truth.tenant,
        "user_id": truth.user_id,
        "version": truth.version,
        "content_hash": truth.content_hash,
        "importance": None if truth.importance is None else float(truth.importance),
        "category": truth.category,
        "tags": None if truth.tags is None else list(truth.tags),
        "slot_hint": truth.slot_hint,
        "expires_at": None if truth.expires_at is None else microseconds(truth.expires_at),
    }
    node["projection_hash"] = digest(node, generation.space)
    return {name: value for name, value in node.items() if value is not None}


def digest(node: Mapping[str, Any], space: str) -> str:
    """`projection_hash` of a node, built from the truth or read from the graph."""
    return projection_hash(space, [node.get(name) for name in PROPERTIES])
