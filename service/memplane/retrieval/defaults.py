"""Defaults of RETRIEVAL and where they come from: request > factory > a runtime's YAML > built in (case R-08)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from memplane.contracts import MAX_LIMIT
from memplane.nodes.shapes import MAX_SAFE_INTEGER, is_object
from memplane.retrieval.embedding import DEFAULT_BATCH_SIZE, MAX_BATCH_SIZE
from memplane.retrieval.errors import invalid_input, require_integer
from memplane.retrieval.fusion import DEFAULT_POOL, DEFAULT_RRF_K, MAX_RRF_K

# Wire path → (field, largest value). The paths are those of `workers.retrieval` in a runtime's YAML.
PATHS: Mapping[str, tuple[str, int]] = {
    "searchLimit": ("search_limit", MAX_LIMIT),
    "embedding.batchSize": ("batch_size", MAX_BATCH_SIZE),
    "embedding.dimensions": ("dimensions", MAX_SAFE_INTEGER),
    "hybrid.candidateLimit": ("candidate_limit", MAX_LIMIT),
    "hybrid.rrfK": ("rrf_k", MAX_RRF_K),
    "rerank.candidateLimit": ("rerank_candidate_limit", MAX_LIMIT),
}
GROUPS = ("embedding", "hybrid", "rerank")


@dataclass(frozen=True, slots=True)
class RetrievalDefaults:
    """Effective values. `dimensions` is None when nobody says how long vectors are."""

    search_limit: int = 10
    batch_size: int = DEFAULT_BATCH_SIZE
    dimensions: int | None = None
    candidate_limit: int = DEFAULT_POOL
    rrf_k: int = DEFAULT_RRF_K
    rerank_candidate_limit: int = DEFAULT_POOL


def check_defaults(document: Any) -> dict[str, int]:
    """Values by field name, checked and copied; None means none. Raises RETRIEVAL_INVALID_INPUT naming the path."""
    if document is None:
        return {}
    if not is_object(document):
        raise invalid_input("defaults must be an object")
    checked: dict[str, int] = {}
    for path, value in _leaves(document):
        if path not in PATHS:
            raise invalid_input(f"Unknown retrieval default: {path}")
        field, largest = PATHS[path]
        checked[field] = require_integer(path, value, 1, largest)
    return checked


def effective(*layers: Mapping[str, int]) -> RetrievalDefaults:
    """What holds when the first layer that has a value decides."""
    merged: dict[str, int] = {}
    for layer in reversed(layers):
        merged.update(layer)
    return RetrievalDefaults(**merged)


def _leaves(document: Mapping[str, Any]) -> list[tuple[str, Any]]:
    leaves: list[tuple[str, Any]] = []
    for name, value in document.items():
        if name in GROUPS:
            if not is_object(value):
                raise invalid_input(f"{name} must be an object")
            leaves += [(f"{name}.{inner}", entry) for inner, entry in value.items()]
        else:
            leaves.append((str(name), value))
    return leaves
