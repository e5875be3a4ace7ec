"""What a plugin returned, checked before a caller sees it. Pure; every breach is INVALID_BACKEND_OUTPUT.

A check says nothing about the store's state: what was committed stays committed (case M-35).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn, cast

from memplane.contracts import (
    DeleteInput,
    DeleteOutput,
    GetInput,
    MemoryItem,
    QueryInput,
    QueryOutput,
    SearchHit,
    SearchInput,
    UpdateInput,
    WriteInput,
)
from memplane.errors import PluginError
from memplane.nodes.shapes import is_array, is_nonempty_string, is_number, is_object


def breach() -> NoReturn:
    raise PluginError("INVALID_BACKEND_OUTPUT", "MEMORY backend returned an invalid result")


def check_get(request: GetInput, output: Any) -> list[MemoryItem]:
    """The requested items, each once: ids in the caller's order, then keys; what was not asked for is dropped."""
    rows = _rows(output)
    by_id = {row["id"]: row for row in rows}
    by_key = {row["key"]: row for row in rows if "key" in row}
    chosen: dict[str, MemoryItem] = {}
    for memory_id in request["ids"]:
        if memory_id in by_id:
            chosen[memory_id] = by_id[memory_id]
    for key in request["keys"]:
        if key in by_key:
            chosen.setdefault(by_key[key]["id"], by_key[key])
    return list(chosen.values())


def check_query(request: QueryInput, output: Any) -> QueryOutput:
    if not is_object(output) or len(_rows(output.get("items"))) > request["limit"]:
        breach()
    if "nextCursor" in output and not is_nonempty_string(output["nextCursor"]):
        breach()
    return cast(QueryOutput, output)


def check_search(request: SearchInput, output: Any) -> list[SearchHit]:
    if not is_array(output) or len(output) > request["limit"]:
        breach()
    seen: set[str] = set()
    for hit in output:
        if not is_object(hit):
            breach()
        _unseen(_row(hit.get("memory")), seen)
        if "score" in hit and not is_number(hit["score"]):
            breach()
        if "metadata" in hit and not is_object(hit["metadata"]):
            breach()
    return cast("list[SearchHit]", list(output))


def check_write(request: WriteInput, output: Any) -> list[MemoryItem]:
    rows = _rows(output)
    if len(rows) != len(request["memories"]):
        breach()
    return rows


def check_update(request: UpdateInput, output: Any) -> list[MemoryItem]:
    """Exactly the requested ids, in any order."""
    rows = _rows(output)
    if {row["id"] for row in rows} != {entry["id"] for entry in request["memories"]}:
        breach()
    return rows


def check_delete(request: DeleteInput, output: Any) -> DeleteOutput:
    if not is_object(output) or not is_array(output.get("deleted")):
        breach()
    remaining = set(request["ids"])
    for memory_id in output["deleted"]:
        if not isinstance(memory_id, str) or memory_id not in remaining:
            breach()
        remaining.remove(memory_id)
    return cast(DeleteOutput, output)


def _rows(value: Any) -> list[MemoryItem]:
    if not is_array(value):
        breach()
    seen: set[str] = set()
    for row in value:
        _unseen(_row(row), seen)
    return list(value)


def _row(value: Any) -> Mapping[str, Any]:
    if not is_object(value) or not is_nonempty_string(value.get("id")) or "content" not in value:
        breach()
    if "key" in value and not is_nonempty_string(value["key"]):
        breach()
    if "metadata" in value and not is_object(value["metadata"]):
        breach()
    return value


def _unseen(row: Mapping[str, Any], seen: set[str]) -> None:
    if row["id"] in seen:
        breach()
    seen.add(row["id"])
