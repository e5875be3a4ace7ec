"""What a caller writes, checked and brought into the shape in which it is stored. No I/O.

`content` is the text that is embedded and searched: a string itself, or the canonical JSON of anything else, whose
original then stands in `document`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from memplane.plugins.postgres.reserved import Reserved, reserved_fields
from memplane.schema.canonical import JSON, canonical, check_text, invalid, normalise

MAX_KEY: Final = 512
"""Characters of a key."""
MAX_SCOPE_BYTES: Final = 256
"""Bytes of a tenant and of a user: both stand before the key in an index entry, which PostgreSQL bounds at 2,704."""
MAX_CONTENT: Final = 2**20
"""Bytes of a content as canonical JSON."""
MAX_METADATA: Final = 64 * 2**10
"""Bytes of a metadata object as canonical JSON."""


@dataclass(frozen=True, slots=True)
class Content:
    """`value` as a reader gets it back; `document` is canonical JSON, None for a plain string."""

    value: JSON
    text: str
    document: str | None
    text_hash: bytes


@dataclass(frozen=True, slots=True)
class Metadata:
    """`text` is the canonical JSON of `value`."""

    value: dict[str, JSON]
    text: str
    reserved: Reserved


NO_RESERVED: Final = Reserved()


def prepare_content(value: JSON, field: str) -> Content:
    """Check a content. Raises INVALID_INPUT naming `field`."""
    if isinstance(value, str):
        text = check_text(value, field)
        encoded = text.encode()
        # Escapes make a string at most six times longer, so most texts need no second encoding to be measured.
        if len(encoded) * 6 + 2 > MAX_CONTENT:
            _measure(canonical(text), MAX_CONTENT, field)
        return Content(text, text, None, sha256(encoded).digest())
    normal = normalise(value, field)
    text = canonical(normal)
    return Content(normal, text, text, sha256(_measure(text, MAX_CONTENT, field)).digest())


def prepare_metadata(value: Mapping[str, JSON], field: str) -> Metadata:
    """Check a metadata object and read its reserved fields. Raises INVALID_INPUT naming `field` or the part of it."""
    if not isinstance(value, Mapping):
        invalid(f"{field} must be an object")
    normal: dict[str, JSON] = normalise(value, field)
    text = canonical(normal)
    _measure(text, MAX_METADATA, field)
    return Metadata(normal, text, reserved_fields(normal, field))


def prepare_key(value: object, field: str) -> str:
    """Check a key. Raises INVALID_INPUT naming `field`."""
    if not isinstance(value, str) or not value:
        invalid(f"{field} must be a nonempty string")
    if len(value) > MAX_KEY:
        invalid(f"{field} must not be longer than {MAX_KEY} characters")
    return check_text(value, field)


def check_scope_part(value: object, field: str) -> str:
    """Check a tenant or a user. Raises INVALID_INPUT naming `field`."""
    if not isinstance(value, str) or not value:
        invalid(f"{field} must be a nonempty string")
    if len(check_text(value, field).encode()) > MAX_SCOPE_BYTES:
        invalid(f"{field} must not be longer than {MAX_SCOPE_BYTES} bytes")
    return value


def stored_content(text: str, document: str | None) -> JSON:
    """The content as it was written, from its two columns."""
    return text if document is None else json.loads(document)


def _measure(text: str, limit: int, field: str) -> bytes:
    encoded = text.encode()
    if len(encoded) > limit:
        invalid(f"{field} must not be larger than {limit} bytes as JSON")
    return encoded
