"""The targets that commands name."""

from __future__ import annotations

from enum import StrEnum


class WorkerTarget(StrEnum):
    """Targets that have worker pools; `ltm_cache` is consumed by the service itself."""

    MILVUS = "milvus"
    NEO4J = "neo4j"
