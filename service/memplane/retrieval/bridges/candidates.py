"""Between memories and candidates (cases R-22, R-23). Pure."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, cast

from memplane.contracts import MemoryItem, SearchHit
from memplane.nodes.shapes import is_array, is_object
from memplane.retrieval.documents import Candidate, RetrievalOutput
from memplane.retrieval.errors import invalid_output

MapOutput = Callable[[RetrievalOutput], "Sequence[SearchHit] | Awaitable[Sequence[SearchHit]]"]


def map_memory_candidates(output: RetrievalOutput) -> list[SearchHit]:
    """Hits of candidates whose content is a whole memory: `{memory, score?, metadata}`.

    A hit's metadata is the candidate's with `source` added when it has one; it is always there. Raises
    RETRIEVAL_INVALID_BACKEND_OUTPUT for any content that is no complete memory, or that has another id than its
    candidate.
    """
    return [_hit(candidate) for candidate in output["candidates"]]


def memory_candidate(hit: Mapping[str, Any], target: str) -> Candidate:
    """The candidate of a memory search's hit, for a target of that name."""
    memory = hit.get("memory")
    if not is_object(memory) or not _is_memory(memory):
        raise invalid_output("Memory search must return complete MemoryItems")
    candidate: Candidate = {
        "id": memory["id"],
        "content": memory,
        "source": {"target": target, "ref": memory["id"]},
    }
    if "score" in hit:
        candidate["score"] = hit["score"]
    if "metadata" in hit:
        candidate["metadata"] = hit["metadata"]
    return candidate


async def mapped(output: RetrievalOutput, map_output: MapOutput | None) -> Sequence[SearchHit]:
    """The hits of an output by the application's mapper, which may be asynchronous, or by `map_memory_candidates`."""
    hits = map_memory_candidates(output) if map_output is None else map_output(output)
    return await hits if inspect.isawaitable(hits) else hits


def hits_of(value: Any) -> Sequence[Mapping[str, Any]]:
    """A memory search's result as a list of objects. Raises RETRIEVAL_INVALID_BACKEND_OUTPUT."""
    if not is_array(value) or not all(is_object(hit) for hit in value):
        raise invalid_output("Memory search must return a list of hits")
    return value


def _hit(candidate: Candidate) -> SearchHit:
    memory = candidate["content"]
    if not _is_memory(memory) or ("id" in candidate and candidate["id"] != memory["id"]):
        raise invalid_output("Memory candidates must contain complete MemoryItems")
    metadata = dict(candidate.get("metadata", {}))
    if "source" in candidate:
        metadata["source"] = candidate["source"]
    hit: SearchHit = {"memory": cast(MemoryItem, memory), "metadata": metadata}
    if "score" in candidate:
        hit["score"] = candidate["score"]
    return hit


def _is_memory(value: Any) -> bool:
    if not is_object(value) or not _is_text(value.get("id")) or "content" not in value:
        return False
    if "key" in value and (not isinstance(value["key"], str) or not value["key"]):
        return False
    return "metadata" not in value or is_object(value["metadata"])


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())
