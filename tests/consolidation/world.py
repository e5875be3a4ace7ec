"""Snapshots made by hand, for the pure part."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from memplane.consolidation import KeepPolicy, Memory, Snapshot
from memplane.contracts import Scope
from memplane.settings import ConsolidationSettings

NOW = datetime(2026, 1, 31, tzinfo=UTC)
SCOPE = Scope("acme", "ann")
SETTINGS = ConsolidationSettings(near_threshold=0.9, half_life_seconds=86400)
KEEP = KeepPolicy()


def memory(number: int, text: str | None = None, **fields: Any) -> Memory:
    """A memory; `relations` are (type, target), and fill the metadata, like `importance`, `tags` and the others do."""
    metadata = dict(fields.pop("metadata", None) or {})
    relations = frozenset(fields.pop("relations", ()))
    if relations:
        metadata["relations"] = [{"type": kind, "target": str(target)} for kind, target in sorted(relations)]
    for name in ("importance", "category", "slot_hint"):
        if fields.get(name) is not None:
            metadata[name] = fields[name]
    if fields.get("expires_at") is not None:
        metadata["expires_at"] = fields["expires_at"].isoformat()
    fields.setdefault("created_at", NOW - timedelta(days=10))
    fields.setdefault("updated_at", fields["created_at"])
    fields.setdefault("version", number)
    content = f"text {number}" if text is None else text
    return Memory(
        id=number,
        text_hash=hashlib.sha256(content.encode()).digest(),
        metadata=metadata or None,
        relations=relations,
        **fields,
    )


def snapshot(memories: Iterable[Memory], vectors: Mapping[int, Iterable[float]] | None = None) -> Snapshot:
    """A snapshot of these memories alone, with the edges between them."""
    by_id = {one.id: one for one in memories}
    incoming: dict[int, set[int]] = {}
    for one in by_id.values():
        for _, target in one.relations:
            incoming.setdefault(target, set()).add(one.id)
    return Snapshot(
        SCOPE,
        NOW,
        by_id,
        {number: array("f", vector) for number, vector in (vectors or {}).items()},
        {target: frozenset(sources) for target, sources in incoming.items()},
    )
