"""What every built-in provider does with a content before it is embedded.

The rule for long texts (design section 5: cut, never an error): the first `max_characters` characters are embedded, the
rest is stored and found by keyword only. Cutting is by code points, so it is the same on every machine and needs no
tokenizer.
"""

from __future__ import annotations

import json
from typing import Any


def text_of(content: Any) -> str:
    """A string as it is; any other content as JSON with sorted keys."""
    if isinstance(content, str):
        return content
    return json.dumps(content, ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=str)


def cut(text: str, max_characters: int) -> str:
    """The part of a text that is embedded."""
    return text[:max_characters]
