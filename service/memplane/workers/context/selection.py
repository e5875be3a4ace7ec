"""SELECT and COMPRESS: which items fit, deterministically and without a model. Source: behaviours 5.1 and 0.3.

SELECT ranks items for a purpose and skips what no longer fits. COMPRESS removes the least needed groups; items with one
`callId` stay or go together, protected ones stay. Neither is a safety policy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from memplane.workers.context.errors import ContextError
from memplane.workers.context.items import Context, Item, bounded, content_bytes
from memplane.workers.context.policy import ContextPolicy

_WORD = re.compile(r"\w+")


def estimate_tokens(item: Item) -> int:
    """A rough count, a quarter of the JSON bytes rounded up; no model's tokenizer."""
    return -(-content_bytes(item["content"]) // 4)


def select(
    items: Sequence[Item], policy: ContextPolicy, *, purpose: str, query: Any, limit: int | None, max_tokens: int | None
) -> Mapping[str, Any]:
    """`{purpose, context, selectedItemIds}`; the chosen items stay in the order of the context."""
    candidates = [item for item in items if purpose != "memory" or _may_be_remembered(item)]
    words = set(_WORD.findall(query.lower())) if isinstance(query, str) else set()
    order = sorted(
        range(len(candidates)), key=lambda index: (*_rank(candidates[index], purpose, words), -index), reverse=True
    )
    most = policy.max_items if limit is None else min(limit, policy.max_items)
    budget = _least(max_tokens, policy.max_tokens)
    chosen: set[int] = set()
    for index in order:
        cost = 0 if budget is None else estimate_tokens(candidates[index])
        if len(chosen) < most and (budget is None or cost <= budget):
            chosen.add(index)
            budget = None if budget is None else budget - cost
    context = bounded([candidates[index] for index in sorted(chosen)], policy)
    return {"purpose": purpose, "context": context, "selectedItemIds": tuple(i["id"] for i in context["items"])}


def compress(items: Sequence[Item], policy: ContextPolicy, *, max_items: int | None, max_tokens: int | None) -> Context:
    """The context within its budgets. Raises BUDGET_UNSATISFIABLE when protected items alone exceed them."""
    most = policy.max_items if max_items is None else min(max_items, policy.max_items)
    budget = _least(max_tokens, policy.max_tokens)
    kept = _groups(items)
    removable = sorted((group for group in kept if not any(is_protected(items[i]) for i in group)), key=_need(items))
    while _exceeds(items, kept, most, budget):
        if not removable:
            raise ContextError("BUDGET_UNSATISFIABLE", "Protected items exceed the budget")
        kept.remove(removable.pop(0))
    remaining = sorted(index for group in kept for index in group)
    return bounded([items[index] for index in remaining], policy)


def is_protected(item: Item) -> bool:
    """Whether COMPRESS must keep it: protected, safety, currentGoal, pending, or a system message."""
    metadata = item.get("metadata", {})
    return any(metadata.get(flag) is True for flag in ("protected", "safety", "currentGoal", "pending")) or (
        metadata.get("role") == "system"
    )


def _may_be_remembered(item: Item) -> bool:
    metadata = item.get("metadata", {})
    return metadata.get("private") is not True and metadata.get("memoryEligible") is not False


def _rank(item: Item, purpose: str, words: set[str]) -> tuple[float, ...]:
    metadata = item.get("metadata", {})
    flags = ("protected", "currentGoal") if purpose == "infer" else ("memoryCandidate", "reusable", "stable")
    first = any(metadata.get(flag) is True for flag in flags) or (
        purpose == "infer" and metadata.get("role") == "system"
    )
    text = item["content"] if isinstance(item["content"], str) else ""
    overlap = len(words & set(_WORD.findall(text.lower())))
    return float(first), _number(metadata.get("priority")), _number(metadata.get("relevance")), float(overlap)


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0


def _least(first: int | None, second: int | None) -> int | None:
    given = [value for value in (first, second) if value is not None]
    return min(given) if given else None


def _groups(items: Sequence[Item]) -> list[tuple[int, ...]]:
    """Indexes of items that belong together, by equal nonempty `callId`."""
    groups: dict[object, list[int]] = {}
    for index, item in enumerate(items):
        call = item.get("metadata", {}).get("callId")
        groups.setdefault(call if isinstance(call, str) and call else index, []).append(index)
    return [tuple(group) for group in groups.values()]


def _need(items: Sequence[Item]) -> Any:
    """Sort key of groups: the least needed first; what can be fetched again counts less, older ones too."""

    def key(group: tuple[int, ...]) -> tuple[float, ...]:
        metadata = [items[index].get("metadata", {}) for index in group]
        return (
            max(_number(m.get("priority")) for m in metadata),
            max(_number(m.get("relevance")) for m in metadata),
            0.0 if all(m.get("retrievable") is True for m in metadata) else 1.0,
            float(max(group)),
        )

    return key


def _exceeds(items: Sequence[Item], kept: Sequence[tuple[int, ...]], most: int, budget: int | None) -> bool:
    remaining = [index for group in kept for index in group]
    if len(remaining) > most:
        return True
    return budget is not None and sum(estimate_tokens(items[index]) for index in remaining) > budget
