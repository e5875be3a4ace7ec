"""What a node call over HTTP may hold beyond the node contract: 10,000 ids or memories (design section 4)."""

from __future__ import annotations

from collections.abc import Mapping

from memplane.contracts import JSON, MAX_LIMIT

_LISTS = {
    "MEMORY.GET": ("ids", "keys"),
    "MEMORY.WRITE": ("memories",),
    "MEMORY.UPDATE": ("memories",),
    "MEMORY.DELETE": ("ids",),
}


def oversized_list(node: str, document: JSON) -> str | None:
    """The message of the INVALID_INPUT result for a list that is too long; None when all fit."""
    if not isinstance(document, Mapping):
        return None
    for name in _LISTS.get(node, ()):
        entries = document.get(name)
        if isinstance(entries, list) and len(entries) > MAX_LIMIT:
            return f"{name} may hold {MAX_LIMIT} entries at most"
    return None
