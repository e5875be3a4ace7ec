"""Public ids: the decimal `memory_id`, and nothing else that merely looks like it."""

from __future__ import annotations

import re
from typing import Final

_CANONICAL: Final = re.compile(r"[1-9][0-9]{0,18}")
_MAX: Final = 2**63 - 1


def parse_id(text: object) -> int | None:
    """The memory_id of a public id; None for whatever no memory can have ("007", "-1", " 1", 2^63 …)."""
    if not isinstance(text, str) or _CANONICAL.fullmatch(text) is None:
        return None
    number = int(text)
    return number if number <= _MAX else None


def quoted(text: str) -> str:
    """A caller's id or key for an error message, shortened."""
    return repr(text if len(text) <= 80 else text[:77] + "...")
