"""What a provider returned, checked before anybody sees it (cases R-03, R-13, R-14). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from memplane.nodes.shapes import is_array, is_number, is_object
from memplane.retrieval.documents import RetrievalOutput, RetrievalRequest, RetrievalTarget
from memplane.retrieval.errors import invalid_output


def check_output(request: RetrievalRequest, output: Any) -> RetrievalOutput:
    """The output with the requested target and strategy; candidates, scores and metadata as the provider gave them.

    Raises RETRIEVAL_INVALID_BACKEND_OUTPUT; too many candidates are never cut off silently.
    """
    if not is_object(output):
        raise invalid_output()
    candidates = output.get("candidates")
    if not is_array(candidates) or len(candidates) > request["limit"]:
        raise invalid_output()
    for candidate in candidates:
        check_candidate(candidate)
    _check_target(request["target"], output.get("target"))
    strategy = request.get("strategy")
    if "strategy" in output and strategy is not None and output["strategy"] != strategy:
        raise invalid_output()
    if "metadata" in output and not is_object(output["metadata"]):
        raise invalid_output()
    checked: dict[str, Any] = {**output, "candidates": list(candidates), "target": request["target"]}
    if strategy is not None:
        checked["strategy"] = strategy
    return cast(RetrievalOutput, checked)


def check_candidate(candidate: Any) -> None:
    """Raises RETRIEVAL_INVALID_BACKEND_OUTPUT unless it is a candidate."""
    if not is_object(candidate) or "content" not in candidate:
        raise invalid_output()
    if "id" in candidate and not _is_text(candidate["id"]):
        raise invalid_output()
    if "score" in candidate and not is_number(candidate["score"]):
        raise invalid_output()
    if "metadata" in candidate and not is_object(candidate["metadata"]):
        raise invalid_output()
    if "source" in candidate:
        source = candidate["source"]
        if not is_object(source) or not all(_is_text(source[name]) for name in ("target", "ref") if name in source):
            raise invalid_output()


def _check_target(requested: RetrievalTarget, reported: Any) -> None:
    if not is_object(reported) or reported.get("name") != requested["name"]:
        raise invalid_output()
    asked: Mapping[str, Any] = cast("Mapping[str, Any]", requested)
    for name in ("type", "namespace"):
        if name in reported and reported[name] != asked.get(name):
            raise invalid_output()


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())
