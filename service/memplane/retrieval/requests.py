"""From a caller's input to the request that a provider sees (cases R-02, R-06, R-07). Pure.

Unknown fields are dropped, values are passed on as they are, and the caller's object stays as it is.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from memplane.contracts import MAX_LIMIT
from memplane.errors import RetrievalError
from memplane.nodes.shapes import is_object
from memplane.retrieval.documents import RetrievalQuery, RetrievalRequest, RetrievalTarget
from memplane.retrieval.errors import STRATEGY_UNSUPPORTED, invalid_input, require_integer


def read_request(value: Any, default_limit: int) -> RetrievalRequest:
    """Check the whole input before any provider is looked for. Raises RETRIEVAL_INVALID_INPUT."""
    document = _object(value, "input")
    request: RetrievalRequest = {
        "query": _query(document.get("query")),
        "target": read_target(document.get("target")),
        "limit": default_limit,
    }
    if "strategy" in document:
        request["strategy"] = check_strategy(document["strategy"])
    if "filter" in document:
        request["filter"] = _object(document["filter"], "filter")
    if "limit" in document:
        request["limit"] = require_integer("limit", document["limit"], 1, MAX_LIMIT)
    if "options" in document:
        request["options"] = _object(document["options"], "options")
    return request


def read_target(value: Any) -> RetrievalTarget:
    """A copy of a target that nobody else holds. Raises RETRIEVAL_INVALID_INPUT."""
    document = _object(value, "target")
    target: RetrievalTarget = {"name": _text(document.get("name"), "target.name")}
    if "type" in document:
        target["type"] = _text(document["type"], "target.type")
    if "namespace" in document:
        target["namespace"] = _text(document["namespace"], "target.namespace")
    if "metadata" in document:
        target["metadata"] = copy.deepcopy(_object(document["metadata"], "target.metadata"))
    return target


def check_strategy(value: Any) -> str:
    """A strategy's name. "rag" is none: generation is no way to search (RETRIEVAL_STRATEGY_UNSUPPORTED)."""
    strategy = _text(value, "strategy")
    if strategy.strip().lower() == "rag":
        raise RetrievalError(STRATEGY_UNSUPPORTED, "RAG is no retrieval strategy; compose retrieval and inference")
    return strategy


def _query(value: Any) -> RetrievalQuery:
    document = _object(value, "query")
    if "content" not in document:
        raise invalid_input("query.content is required")
    query: RetrievalQuery = {"content": document["content"]}
    if "metadata" in document:
        query["metadata"] = _object(document["metadata"], "query.metadata")
    return query


def _object(value: Any, name: str) -> Mapping[str, Any]:
    if not is_object(value):
        raise invalid_input(f"{name} must be an object")
    return value


def _text(value: Any, name: str) -> str:
    """In RETRIEVAL a blank string counts as empty."""
    if not isinstance(value, str) or not value.strip():
        raise invalid_input(f"{name} must be a nonempty string")
    return value
