"""A SEARCH input, checked: what is asked, by which strategy, with which options. Pure.

query     a string, or {"text": …, "vector": [...]} with one of them or both
strategy  vector, keyword, graph or hybrid (the default)
options   {"weights": {branch: number}, "rrfK": 60, "pool": 100,
           "graph": {"depth": 1, "decay": 0.5, "types": ["follows"], "seeds": ["17"]}}
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from memplane.contracts import MAX_LIMIT, SearchInput
from memplane.errors import PluginError
from memplane.plugins.search.settings import BRANCHES, MAX_DEPTH, HybridSettings
from memplane.retrieval.filters import Filter, parse_filter
from memplane.retrieval.fusion import MAX_RRF_K
from memplane.schema.canonical import JSON, check_text, invalid
from memplane.schema.ids import parse_id

HYBRID: Final = "hybrid"
MAX_TEXT: Final = 65_536
"""Characters of a question."""
MAX_SEEDS: Final = 100
MAX_TYPES: Final = 100
MAX_COMPONENT: Final = 3.4e38
"""Vectors are compared as 32-bit floats."""
UNIT_TOLERANCE: Final = 1e-6


@dataclass(frozen=True, slots=True)
class GraphOptions:
    depth: int
    decay: float
    count: int
    """How many of the other branches' best are expanded."""
    types: tuple[str, ...] | None = None
    seeds: tuple[int, ...] | None = None
    """Memories to start from, given by the caller; otherwise the other branches' best."""


@dataclass(frozen=True, slots=True)
class Request:
    """`vector` has length 1. `named` tells that the caller chose the strategy."""

    text: str | None
    vector: tuple[float, ...] | None
    strategy: str
    named: bool
    filter: Filter | None
    limit: int
    weights: Mapping[str, float]
    rrf_k: int
    pool: int
    graph: GraphOptions


def parse_request(input: SearchInput, branches: Collection[str], settings: HybridSettings) -> Request:  # noqa: A002
    """Check a SEARCH input; `branches` are the configured ones.

    Raises `PluginError`: UNSUPPORTED_STRATEGY, INVALID_INPUT naming field and limit, UNSUPPORTED_FILTER.
    """
    strategy = input.get("strategy", HYBRID)
    known = [*(branch for branch in BRANCHES if branch in branches), HYBRID]
    if strategy not in known:
        raise PluginError("UNSUPPORTED_STRATEGY", f"Unknown search strategy; known: {', '.join(known)}")
    options = input.get("options", {})
    _only(options, "options", ("weights", "rrfK", "pool", "graph"))
    text, vector = parse_query(input["query"])
    return Request(
        text=text,
        vector=vector,
        strategy=strategy,
        named="strategy" in input,
        filter=parse_filter(input["filter"]) if "filter" in input else None,
        limit=input["limit"],
        weights=_weights(options.get("weights", {}), settings),
        rrf_k=_integer(options.get("rrfK", settings.rrf_k), "options.rrfK", 1, MAX_RRF_K),
        pool=_integer(options.get("pool", settings.pool), "options.pool", 1, MAX_LIMIT),
        graph=_graph(options.get("graph", {}), settings),
    )


def check_dimensions(vector: Sequence[float], dimensions: int) -> None:
    """INVALID_INPUT unless the vector has as many numbers as those it is compared with."""
    if len(vector) != dimensions:
        invalid(f"query.vector must have {dimensions} numbers, not {len(vector)}")


def parse_query(query: JSON) -> tuple[str | None, tuple[float, ...] | None]:
    if isinstance(query, str):
        return _text(query, "query"), None
    if not isinstance(query, Mapping) or not query:
        invalid("query must be a string or an object with text, vector or both")
    _only(query, "query", ("text", "vector"))
    text = _text(query["text"], "query.text") if "text" in query else None
    vector = _vector(query["vector"]) if "vector" in query else None
    return text, vector


def _text(value: JSON, field: str) -> str:
    if not isinstance(value, str) or not value.strip():
        invalid(f"{field} must be a string that is not blank")
    if len(value) > MAX_TEXT:
        invalid(f"{field} must not be longer than {MAX_TEXT} characters")
    return check_text(value, field)


def _vector(value: JSON) -> tuple[float, ...]:
    """The vector's direction: that is all that cosine compares, and no length can overflow."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence) or not value:
        invalid("query.vector must be a nonempty array of finite numbers")
    # Type and length of all numbers at once: a loop over them would take longer than some searches.
    if not set(map(type, value)) <= {int, float} or not all(map(MAX_COMPONENT.__ge__, map(abs, value))):
        invalid(f"query.vector must hold finite numbers of at most {MAX_COMPONENT:g} alone")
    length = math.hypot(*value)
    if length == 0:
        invalid("query.vector must not be all zeros: it has no direction")
    if abs(length - 1) < UNIT_TOLERANCE:
        # Most models give vectors of length 1: they are searched with as they are.
        return tuple(map(float, value))
    return tuple(number / length for number in value)


def _weights(value: JSON, settings: HybridSettings) -> dict[str, float]:
    _only(value, "options.weights", BRANCHES)
    weights: dict[str, float] = {branch: getattr(settings.weights, branch) for branch in BRANCHES}
    for branch, weight in value.items():
        weights[branch] = _number(weight, f"options.weights.{branch}", 1000)
    return weights


def _graph(value: JSON, settings: HybridSettings) -> GraphOptions:
    _only(value, "options.graph", ("depth", "decay", "types", "seeds"))
    types = _strings(value["types"], "options.graph.types", MAX_TYPES) if "types" in value else None
    seeds = _strings(value["seeds"], "options.graph.seeds", MAX_SEEDS) if "seeds" in value else None
    return GraphOptions(
        depth=_integer(value.get("depth", settings.graph.depth), "options.graph.depth", 1, MAX_DEPTH),
        decay=_number(value.get("decay", settings.graph.decay), "options.graph.decay", 1),
        count=settings.graph.seeds,
        types=types,
        # What no memory can have as its id is simply absent, as everywhere.
        seeds=None if seeds is None else tuple(one for text in seeds if (one := parse_id(text)) is not None),
    )


def _only(value: JSON, field: str, known: Collection[str]) -> None:
    if not isinstance(value, Mapping):
        invalid(f"{field} must be an object")
    for name in value:
        if name not in known:
            shown = repr(name if len(str(name)) <= 80 else str(name)[:77] + "...")
            invalid(f"{field} has no member {shown}; known: {', '.join(known)}")


def _integer(value: JSON, field: str, low: int, high: int) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        invalid(f"{field} must be an integer in {low}..{high}")
    return value


def _number(value: JSON, field: str, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= high:
        invalid(f"{field} must be a number above 0, at most {high:g}")
    return float(value)


def _strings(value: JSON, field: str, most: int) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or len(value) > most:
        invalid(f"{field} must be an array of at most {most} strings")
    for entry in value:
        if not isinstance(entry, str) or not entry:
            invalid(f"{field} must hold nonempty strings")
    return tuple(check_text(entry, field) for entry in value)
