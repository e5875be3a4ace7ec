"""From what a caller sent to what a plugin sees. Pure; every fault is `PluginError("INVALID_INPUT", …)`.

The result is always a new object that holds the contract's fields and no others: an unknown field is no error, and it
reaches no plugin either. Values (content, metadata, filter, query …) are passed on as they are. Presence decides, not
truth: an explicit null is a value, mostly an invalid one. The order of the checks is part of the contract.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, cast

from memplane.contracts import (
    MAX_LIMIT,
    DeleteInput,
    GetInput,
    MemoryDraft,
    MemoryUpdateEntry,
    OrderBy,
    QueryInput,
    SearchInput,
    UpdateInput,
    WriteInput,
)
from memplane.errors import PluginError
from memplane.nodes.shapes import MAX_SAFE_INTEGER, integer, is_array, is_nonempty_string, is_object


def refuse(message: str) -> NoReturn:
    raise PluginError("INVALID_INPUT", message)


def read_get(value: Any) -> GetInput:
    """Both lists, each without repetitions, in the caller's order; an absent one is empty."""
    document = _object(value, "input")
    if "ids" not in document and "keys" not in document:
        refuse("GET requires ids or keys")
    ids = _strings(document["ids"], "ids") if "ids" in document else []
    keys = _strings(document["keys"], "keys") if "keys" in document else []
    return {"ids": ids, "keys": keys}


def read_query(value: Any, default_limit: int) -> QueryInput:
    document = _object(value, "input")
    if "filter" in document:
        _object(document["filter"], "filter")
    seen: QueryInput = {"limit": _limit(document, default_limit)}
    if "filter" in document:
        seen["filter"] = document["filter"]
    if "cursor" in document:
        seen["cursor"] = _nonempty(document["cursor"], "cursor")
    if "orderBy" in document:
        seen["orderBy"] = [_order(entry) for entry in _array(document["orderBy"], "orderBy")]
    return seen


def read_search(value: Any, default_limit: int) -> SearchInput:
    document = _object(value, "input")
    if "filter" in document:
        _object(document["filter"], "filter")
    limit = _limit(document, default_limit)
    if "query" not in document:
        refuse("query is required")
    seen: SearchInput = {"query": document["query"], "limit": limit}
    if "filter" in document:
        seen["filter"] = document["filter"]
    if "strategy" in document:
        seen["strategy"] = _nonempty(document["strategy"], "strategy")
    if "options" in document:
        seen["options"] = _object(document["options"], "options")
    return seen


def read_write(value: Any) -> WriteInput:
    document = _object(value, "input")
    return {"memories": [_draft(entry) for entry in _array(document.get("memories"), "memories")]}


def read_update(value: Any) -> UpdateInput:
    document = _object(value, "input")
    seen_ids: set[str] = set()
    return {"memories": [_update(entry, seen_ids) for entry in _array(document.get("memories"), "memories")]}


def read_delete(value: Any) -> DeleteInput:
    """The ids without repetitions, in the caller's order."""
    document = _object(value, "input")
    seen: DeleteInput = {"ids": _strings(document.get("ids"), "ids")}
    if "expectedVersions" in document:
        expected = _object(document["expectedVersions"], "expectedVersions")
        ids = set(seen["ids"])
        for memory_id, version in expected.items():
            if memory_id not in ids:
                refuse("expectedVersions must name requested ids only")
            _version(version, "expectedVersions")
        seen["expectedVersions"] = {memory_id: int(version) for memory_id, version in expected.items()}
    return seen


def _draft(value: Any) -> MemoryDraft:
    entry = _object(value, "memory")
    if "content" not in entry:
        refuse("content is required")
    draft: MemoryDraft = {"content": entry["content"]}
    if "key" in entry:
        draft["key"] = _nonempty(entry["key"], "key")
    if "metadata" in entry:
        draft["metadata"] = _object(entry["metadata"], "metadata")
    return draft


def _update(value: Any, seen_ids: set[str]) -> MemoryUpdateEntry:
    entry = _object(value, "memory")
    memory_id = _nonempty(entry.get("id"), "id")
    if memory_id in seen_ids:
        refuse("Duplicate update id")
    seen_ids.add(memory_id)
    if "content" not in entry and "metadata" not in entry:
        refuse("UPDATE requires content or metadata")
    if "key" in entry:
        refuse("UPDATE cannot change key")
    update: MemoryUpdateEntry = {"id": memory_id}
    if "content" in entry:
        update["content"] = entry["content"]
    if "metadata" in entry:
        update["metadata"] = _object(entry["metadata"], "metadata")
    if "expectedVersion" in entry:
        update["expectedVersion"] = _version(entry["expectedVersion"], "expectedVersion")
    return update


def _order(value: Any) -> OrderBy:
    entry = _object(value, "orderBy")
    order: OrderBy = {"field": _nonempty(entry.get("field"), "orderBy.field")}
    if "direction" in entry:
        direction = entry["direction"]
        if direction not in ("asc", "desc"):
            refuse("Invalid order direction")
        order["direction"] = direction
    return order


def _limit(document: Mapping[str, Any], default: int) -> int:
    if "limit" not in document:
        return default
    limit = integer(document["limit"], 1, MAX_LIMIT)
    if limit is None:
        refuse(f"limit must be an integer in 1..{MAX_LIMIT}")
    return limit


def _version(value: Any, name: str) -> int:
    version = integer(value, 1, MAX_SAFE_INTEGER)
    if version is None:
        refuse(f"{name} must be an integer in 1..{MAX_SAFE_INTEGER}")
    return version


def _object(value: Any, name: str) -> Mapping[str, Any]:
    if not is_object(value):
        refuse(f"{name} must be an object")
    return value


def _array(value: Any, name: str) -> Sequence[Any]:
    if not is_array(value):
        refuse(f"{name} must be an array")
    return value


def _nonempty(value: Any, name: str) -> str:
    if not is_nonempty_string(value):
        refuse(f"{name} must be a nonempty string")
    return value


def _strings(value: Any, name: str) -> list[str]:
    entries = _array(value, name)
    for entry in entries:
        _nonempty(entry, name)
    return cast("list[str]", list(dict.fromkeys(entries)))
