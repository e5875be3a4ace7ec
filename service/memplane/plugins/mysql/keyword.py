"""Keyword search: words that are rare among the caller's memories count most (BM25), as in the other stores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from memplane.contracts import JSON, Scope, SearchHit
from memplane.errors import PluginError
from memplane.plugins.mysql.filters import Condition, narrowed
from memplane.plugins.mysql.pool import Row, Session
from memplane.plugins.mysql.rows import COLUMNS, SCOPED, read_items, scope_arguments, stored
from memplane.plugins.mysql.words import asked_words
from memplane.retrieval.filters import Filter, matches, parse_filter
from memplane.schema.canonical import check_text, invalid

STRATEGIES: Final = ("keyword",)
LENGTH_WEIGHT: Final = 0.75
"""How much a long memory's matches are worth less (BM25's b)."""

MAX_POSTINGS: Final = 100_000
"""Occurrences that one search looks at, the rarest words first; the rarest one is always looked at."""

MAX_CANDIDATES: Final = 20_000
"""Best matches that a filter, which SQL cannot decide, is tried on."""


@dataclass(frozen=True, slots=True)
class Question:
    """A SEARCH, checked."""

    words: Sequence[int]
    limit: int
    condition: Condition
    residual: Filter | None


def ask(scope: Scope, query: JSON, strategy: str | None, filter: Filter | None, limit: int) -> Question:  # noqa: A002
    """Raises UNSUPPORTED_STRATEGY with the known ones, INVALID_INPUT for a query without text. No I/O."""
    if strategy is not None and strategy not in STRATEGIES:
        raise PluginError("UNSUPPORTED_STRATEGY", f"Known strategies: {', '.join(STRATEGIES)}")
    text = query.get("text") if isinstance(query, dict) else query
    if not isinstance(text, str):
        invalid("query must be a string or an object with text")
    condition = narrowed(filter)
    words = asked_words(scope, check_text(text, "query"))
    return Question(words, limit, condition, None if condition.exact else filter)


def parsed(document: JSON) -> Filter | None:
    """The filter of a request; None when it has none."""
    return None if document is None else parse_filter(document)


async def search(session: Session, scope: Scope, question: Question) -> list[SearchHit]:
    """The best memories with their scores (above 0), best first; equal ones by id. One snapshot."""
    if not question.words:
        return []
    [(memories, average)] = await session.rows(
        f"SELECT COUNT(*), COALESCE(AVG(m.words), 1) + 0e0 FROM memplane_memory AS m WHERE {SCOPED}",
        scope_arguments(scope),
    )
    weights = await _weights(session, memories, question.words)
    if not weights:
        return []
    rows = await _ranked(session, scope, question, weights, max(average, 1.0))
    if question.residual is not None:
        found = [row for row in rows if matches(question.residual, stored(row).item("", False))]
        if len(found) < question.limit and len(rows) == MAX_CANDIDATES:
            raise PluginError(
                "UNSUPPORTED_FILTER", f"Too few of the {MAX_CANDIDATES} best matches pass; narrow query or filter"
            )
        rows = found
    best = rows[: question.limit]
    items = await read_items(session, scope, [row[0] for row in best])
    return [SearchHit(memory=items[row[0]], score=float(row[6])) for row in best if row[0] in items]


async def _weights(session: Session, memories: int, words: Sequence[int]) -> dict[int, float]:
    """What each word is worth; only of words that the scope's memories have, within the bound."""
    rows = await session.rows("SELECT word, COUNT(*) FROM memplane_word WHERE word IN %s GROUP BY word", [tuple(words)])
    weights: dict[int, float] = {}
    postings = 0
    for word, count in sorted(rows, key=lambda row: (row[1], row[0])):
        postings += count
        if weights and postings > MAX_POSTINGS:
            break
        rest = max(memories - count, 0)
        weights[word] = math.log(1 + (rest + 0.5) / (count + 0.5))
    return weights


async def _ranked(
    session: Session, scope: Scope, question: Question, weights: dict[int, float], average: float
) -> list[Row]:
    cases = " ".join(f"WHEN {word:d} THEN {_literal(weight)}" for word, weight in weights.items())
    length = f"({_literal(1 - LENGTH_WEIGHT)} + {_literal(LENGTH_WEIGHT / average)} * m.words)"
    statement = f"""
SELECT {COLUMNS}, SUM(CASE w.word {cases} END) / {length} AS score
FROM memplane_word AS w JOIN memplane_memory AS m ON m.id = w.memory_id
WHERE w.word IN %s AND {SCOPED} AND {question.condition.text}
GROUP BY m.id ORDER BY score DESC, m.id LIMIT %s
"""
    limit = question.limit if question.residual is None else MAX_CANDIDATES
    return await session.rows(
        statement, [tuple(weights), *scope_arguments(scope), *question.condition.arguments, limit]
    )


def _literal(weight: float) -> str:
    """A number of our own as SQL: always a double, never a decimal."""
    return f"{weight:.17e}"
