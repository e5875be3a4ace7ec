"""What a context may hold: a frozen policy with defaults. Source: behaviours X-04, X-08, X-10."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from memplane.errors import SettingsError
from memplane.runtime.config.layout import CONTEXT
from memplane.runtime.errors import DefinitionError


@dataclass(frozen=True, slots=True)
class ContextPolicy:
    """Limits and duplicate rules.

    max_inline_bytes: content of one item as JSON in UTF-8; items with a source or a reference part are exempt.
    max_items: items of a context. max_tokens: estimated tokens of a SELECT or COMPRESS; None is unlimited.
    duplicate: what a repeated id does. missing_removal: what removing an absent id does.
    """

    max_inline_bytes: int = 65536
    max_items: int = 256
    max_tokens: int | None = None
    duplicate: Literal["replace", "keep-first", "reject"] = "replace"
    missing_removal: Literal["ignore", "reject"] = "ignore"

    @classmethod
    def of(cls, settings: Mapping[str, Any] | None) -> ContextPolicy:
        """From `{maxInlineBytes, maxItems, maxTokens, duplicate, missingRemoval}`. Raises `DefinitionError`."""
        try:
            checked = CONTEXT.check("context", {"policy": dict(settings or {})})["policy"]
        except (SettingsError, TypeError, ValueError) as error:
            raise DefinitionError(str(error)) from None
        names = {
            "maxInlineBytes": "max_inline_bytes",
            "maxItems": "max_items",
            "maxTokens": "max_tokens",
            "duplicate": "duplicate",
            "missingRemoval": "missing_removal",
        }
        return cls(**{names[key]: value for key, value in checked.items()})
