"""The metadata fields that the store understands: validated when present, copied to columns (design section 5).

The metadata itself is kept as written. An absent field leaves its column NULL; a present null is no valid value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from memplane.schema.canonical import JSON, invalid
from memplane.schema.ids import parse_id
from memplane.schema.times import parse_time

MAX_NAME: Final = 256
"""Characters of a category, tag, slot hint or relation type: what every projection can index."""
MAX_TAGS: Final = 256
MAX_RELATIONS: Final = 256


@dataclass(frozen=True, slots=True)
class Relation:
    """An edge to be: `target` is a memory_id, or None when no memory can have the id that was given."""

    type: str
    target: int | None


@dataclass(frozen=True, slots=True)
class Reserved:
    """The columns that a metadata object fills."""

    importance: float | None = None
    category: str | None = None
    tags: list[str] | None = None
    slot_hint: str | None = None
    expires_at: datetime | None = None
    relations: tuple[Relation, ...] = ()


def reserved_fields(metadata: Mapping[str, JSON], field: str) -> Reserved:
    """Read the reserved fields of a normalised metadata object. Raises INVALID_INPUT naming the offending one."""
    return Reserved(
        importance=_importance(metadata, field),
        category=_name(metadata["category"], f"{field}.category") if "category" in metadata else None,
        tags=_tags(metadata["tags"], f"{field}.tags") if "tags" in metadata else None,
        slot_hint=_name(metadata["slot_hint"], f"{field}.slot_hint") if "slot_hint" in metadata else None,
        expires_at=_expiry(metadata["expires_at"], f"{field}.expires_at") if "expires_at" in metadata else None,
        relations=_relations(metadata["relations"], f"{field}.relations") if "relations" in metadata else (),
    )


def _importance(metadata: Mapping[str, JSON], field: str) -> float | None:
    if "importance" not in metadata:
        return None
    value = metadata["importance"]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        invalid(f"{field}.importance must be a number in 0..1")
    return float(value)


def _name(value: JSON, field: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME:
        invalid(f"{field} must be a nonempty string of at most {MAX_NAME} characters")
    return value


def _tags(value: JSON, field: str) -> list[str]:
    if not isinstance(value, list) or len(value) > MAX_TAGS:
        invalid(f"{field} must be an array of at most {MAX_TAGS} strings")
    return [_name(tag, f"{field}[{index}]") for index, tag in enumerate(value)]


def _expiry(value: JSON, field: str) -> datetime:
    instant = parse_time(value)
    if instant is None:
        invalid(f"{field} must be an RFC 3339 time with an offset")
    return instant


def _relations(value: JSON, field: str) -> tuple[Relation, ...]:
    if not isinstance(value, list) or len(value) > MAX_RELATIONS:
        invalid(f"{field} must be an array of at most {MAX_RELATIONS} objects")
    relations: list[Relation] = []
    seen: set[tuple[str, str]] = set()
    for index, entry in enumerate(value):
        where = f"{field}[{index}]"
        if not isinstance(entry, dict):
            invalid(f"{where} must be an object")
        kind = _name(entry.get("type"), f"{where}.type")
        target = entry.get("target")
        if not isinstance(target, str) or not target:
            invalid(f"{where}.target must be the id of a memory")
        if (kind, target) in seen:
            invalid(f"{where} repeats an earlier relation")
        seen.add((kind, target))
        relations.append(Relation(kind, parse_id(target)))
    return tuple(relations)
