"""The channel on which processes tell each other which bodies are stale, and the payloads on it.

A payload is a list of `memory_id:version`, comma separated: whatever is older than that version is stale. It names
nobody and holds no content; `CLEAR` says that every body is. A lost notification is healed by polling
(`cache.listener`) and by the TTL.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256

from memplane.schema.database import Database

CLEAR = "*"
"""The payload that makes every process forget all bodies."""

MAX_PAYLOAD = 7_900
"""Bytes; PostgreSQL refuses 8,000 and more."""

MAX_CHANNEL_BYTES = 63

_PAIR = re.compile(r"([0-9]{1,19}):([0-9]{1,19})")


def cache_channel(database: Database) -> str:
    """One channel per schema; a long schema name is replaced by its digest."""
    schema = database.settings.schema_name
    name = f"memplane_cache_{schema}"
    if len(name) <= MAX_CHANNEL_BYTES:
        return name
    return f"memplane_cache_{sha256(schema.encode()).hexdigest()[:32]}"


def payloads(stale: Iterable[tuple[int, int]]) -> list[str]:
    """Pairs of memory_id and version as few payloads of at most `MAX_PAYLOAD` bytes."""
    made: list[str] = []
    current = ""
    for memory_id, version in stale:
        pair = f"{memory_id}:{version}"
        if current and len(current) + 1 + len(pair) > MAX_PAYLOAD:
            made.append(current)
            current = ""
        current = f"{current},{pair}" if current else pair
    return [*made, current] if current else made


def parse_payload(payload: str) -> list[tuple[int, int]]:
    """The pairs of a payload; anybody can notify, so what is none is skipped."""
    found = []
    for part in payload.split(","):
        match = _PAIR.fullmatch(part)
        if match is not None:
            found.append((int(match[1]), int(match[2])))
    return found
