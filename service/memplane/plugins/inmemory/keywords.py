"""Keyword search over rows in memory: words that are rare among the caller's memories count most.

The tokenizer is the one of the PostgreSQL store, so a question finds the same memories; the order may differ.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from memplane.contracts import JSON, Scope
from memplane.errors import PluginError
from memplane.plugins.inmemory.rows import Row
from memplane.plugins.postgres.tokens import query_tokens
from memplane.schema.canonical import check_text, invalid

STRATEGIES = ("keyword",)
LENGTH_WEIGHT = 0.75
"""How much a long memory's matches are worth less (BM25's b)."""


def question(query: JSON) -> str:
    """The text of a search: a string, or an object's `text`. Raises INVALID_INPUT."""
    text = query.get("text") if isinstance(query, dict) else query
    if not isinstance(text, str):
        invalid("query must be a string or an object with text")
    return check_text(text, "query")


def check_strategy(strategy: str | None) -> None:
    if strategy is not None and strategy not in STRATEGIES:
        raise PluginError("UNSUPPORTED_STRATEGY", f"Known strategies: {', '.join(STRATEGIES)}")


def rank(scope: Scope, text: str, rows: Sequence[Row], limit: int) -> list[tuple[Row, float]]:
    """The best rows with their scores (above 0), best first; equal ones by id."""
    words = query_tokens(scope.tenant, scope.user, text)
    found = {word: count for word in words if (count := sum(word in row.lexemes for row in rows))}
    if not found:
        return []
    weights = {word: math.log(1 + (len(rows) - count + 0.5) / (count + 0.5)) for word, count in found.items()}
    average = sum(len(row.lexemes) for row in rows) / len(rows)
    scored = ((row, _score(row, weights, average)) for row in rows)
    return heapq.nsmallest(
        limit, ((row, score) for row, score in scored if score > 0), key=lambda hit: (-hit[1], hit[0].id)
    )


def _score(row: Row, weights: dict[str, float], average: float) -> float:
    matched = math.fsum(weight for word, weight in weights.items() if word in row.lexemes)
    return matched / (1 - LENGTH_WEIGHT + LENGTH_WEIGHT * len(row.lexemes) / average) if matched else 0.0
