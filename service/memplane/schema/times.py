"""Times on the wire: RFC 3339, UTC, microseconds."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

_RFC3339: Final = re.compile(
    r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,9})?(Z|[+-]\d{2}:\d{2})", re.IGNORECASE | re.ASCII
)


def parse_time(text: object) -> datetime | None:
    """The instant of an RFC 3339 time, cut to microseconds; None if the text is none (an offset is required)."""
    if not isinstance(text, str) or _RFC3339.fullmatch(text) is None:
        return None
    try:
        return datetime.fromisoformat(text.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def format_time(instant: datetime) -> str:
    """`2026-03-01T09:30:00.000000Z`."""
    return instant.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
